"""Trains a model: the Python API as a program to copy and change.

python scripts/train.py my-recipe.yaml output=my-model max_steps=20000
accelerate launch scripts/train.py cmudict
"""

import argparse

import yaml
from accelerate import PartialState

from vanilla_transformer import train


def main(words: list[str] | None = None) -> None:
    """Trains from a recipe, and prints the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="a recipe that comes with the package, or a YAML file")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings that override the recipe's")
    arguments = parser.parse_args(words)
    settings = dict(setting.split("=", 1) for setting in arguments.settings)
    run = train(arguments.recipe, **{name: yaml.safe_load(value) for name, value in settings.items()})
    if PartialState().is_main_process:
        print(run.directory, run.scores)


if __name__ == "__main__":
    main()
