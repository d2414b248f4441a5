"""Learn to put texts into classes, then classify new ones.

    python examples/classify_texts.py reviews.tsv my-model --dev dev.tsv --classify "What a film!"

The table (TSV, CSV, JSONL or Parquet) has the columns text and label; labels are words of any kind. Size and length of
training are chosen from the number of texts and the device, and printed. If interrupted, run it again.
"""

import argparse
from collections.abc import Sequence

from transformers import pipeline

from vanilla_transformer import Recipe, train


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, and prints the label of each text given with its probability."""
    parser = argparse.ArgumentParser(description="Learn to put texts into classes.")
    parser.add_argument("table", help="table with the columns text and label")
    parser.add_argument("output", help="directory for the model")
    parser.add_argument("--dev", help="table of held-out texts to score")
    parser.add_argument("--max-steps", type=int, help="length of training (default: chosen from the data)")
    parser.add_argument("--classify", nargs="+", default=(), metavar="TEXT", help="texts to classify")
    options = parser.parse_args(argv)

    recipe = Recipe.of(
        task="text-classification",
        train=(options.table,),
        dev=(options.dev,) if options.dev else (),
        output=options.output,
        max_steps=options.max_steps,
    )
    directory = train(recipe)
    classify = pipeline("text-classification", model=str(directory))
    for text in options.classify:
        [found] = classify(text)
        print(f"{found['label']}\t{found['score']:.3f}")


if __name__ == "__main__":
    main()
