"""Train a translation model for your own language pair, then translate with it.

    python examples/train_your_language_pair.py train.en train.de my-model --translate "A dog runs."

The two files are line-aligned: line 7 of one translates line 7 of the other. Model size, vocabulary, batch size and
number of steps are chosen from the amount of text and the device, and printed. If interrupted, run it again.
"""

import argparse
from collections.abc import Sequence

from vanilla_transformer import Recipe, Translator, train


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, and prints the translation of each sentence given."""
    parser = argparse.ArgumentParser(description="Train a translation model for your own language pair.")
    parser.add_argument("source", help="file of sentences, one per line")
    parser.add_argument("target", help="file of their translations, one per line")
    parser.add_argument("output", help="directory for the model")
    parser.add_argument("--dev", nargs=2, default=(), metavar=("SOURCE", "TARGET"), help="held-out pairs to score")
    parser.add_argument("--max-steps", type=int, help="length of training (default: chosen from the data)")
    parser.add_argument("--translate", nargs="+", default=(), metavar="SENTENCE", help="sentences to translate")
    options = parser.parse_args(argv)

    recipe = Recipe.of(
        train=(options.source, options.target),
        dev=tuple(options.dev),
        output=options.output,
        max_steps=options.max_steps,
    )
    run = train(recipe)  # Its directory is a Hugging Face model: `AutoModelForSeq2SeqLM.from_pretrained` loads it.
    for translation in Translator(run)(options.translate):
        print(translation.text)


if __name__ == "__main__":
    main()
