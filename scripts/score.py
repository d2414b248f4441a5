"""Scores a model on text that it has not seen: the Python API as a program to copy and change.

python scripts/score.py my-model test.en test.de --metrics sacrebleu chrf --predictions translations.txt
"""

import argparse
from pathlib import Path

from vanilla_transformer import evaluate


def main(words: list[str] | None = None) -> None:
    """Prints a model's scores, and writes its predictions if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model directory or Hub id")
    parser.add_argument("data", nargs="+", help="two line-aligned files, a table, or an id of the Hub")
    parser.add_argument("--metrics", nargs="+", help="names of metrics (default: those of the model's recipe)")
    parser.add_argument("--num-beams", type=int, help="width of the beam (default: the model's own)")
    parser.add_argument("--predictions", type=Path, help="file to write, one line per row")
    arguments = parser.parse_args(words)
    settings = {"num_beams": arguments.num_beams} if arguments.num_beams else {}
    found = evaluate(arguments.model, arguments.data, metrics=arguments.metrics, **settings)
    for score in found.scores.values():
        print(score)
    if arguments.predictions:
        arguments.predictions.write_text("".join(f"{line}\n" for line in found.predictions), encoding="utf-8")


if __name__ == "__main__":
    main()
