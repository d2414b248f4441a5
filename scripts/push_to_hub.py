"""Uploads a model to the Hub: the Python API as a program to copy and change. Log in first with `hf auth login`.

python scripts/push_to_hub.py my-model org/name --private
"""

import argparse
from pathlib import Path

from vanilla_transformer.hub import push_model


def main(words: list[str] | None = None) -> None:
    """Pushes a model directory, and prints the address of its repository."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a model directory")
    parser.add_argument("name", help="ORG/NAME on the Hub, or NAME in your own namespace")
    parser.add_argument("--private", action="store_true", help="create a private repository")
    arguments = parser.parse_args(words)
    print(push_model(arguments.model, arguments.name, private=arguments.private))


if __name__ == "__main__":
    main()
