"""Learn how a language is pronounced, from a list of words with their phonemes.

    python examples/pronounce_a_language.py lexicon.tsv my-model --pronounce neue Wörter

The lexicon is a table of two columns without a header: a word, and its phonemes with spaces between them. A word may
stand there several times, once for each of its pronunciations. One word in twenty is kept aside and scored. Size and
length of training are chosen from the number of words and the device, and printed. If interrupted, run it again.
"""

import argparse
import hashlib
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from vanilla_transformer import Recipe, Translator, train


def split(lexicon: str, directory: Path) -> tuple[Path, Path]:
    """Two tables of the lexicon's words: what is learned, and every twentieth word, the same ones in each run."""
    learned, kept = directory / "train.tsv", directory / "dev.tsv"
    with (
        open(lexicon, encoding="utf-8") as lines,
        learned.open("w", encoding="utf-8") as train_file,
        kept.open("w", encoding="utf-8") as dev_file,
    ):
        for number, line in enumerate(lines, 1):
            word, tab, phonemes = line.rstrip("\n").partition("\t")
            if not tab:
                raise SystemExit(f"{lexicon}, line {number}: there is no tab between a word and its phonemes.")
            # Letters that look alike are the same: é may be written as one character, or as e and an accent.
            word = unicodedata.normalize("NFC", word)
            # All pronunciations of a word go to one side, or the score would be of words that were learned.
            aside = hashlib.sha256(word.encode()).digest()[0] % 20 == 0
            print(word, phonemes, sep="\t", file=dev_file if aside else train_file)
    return learned, kept


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, scores words that were kept aside, and pronounces those given."""
    parser = argparse.ArgumentParser(description="Learn how a language is pronounced.")
    parser.add_argument("lexicon", help="table of words and their phonemes, separated by a tab")
    parser.add_argument("output", type=Path, help="directory for the model")
    parser.add_argument("--max-steps", type=int, help="length of training (default: chosen from the data)")
    parser.add_argument("--pronounce", nargs="+", default=(), metavar="WORD", help="words to pronounce")
    options = parser.parse_args(argv)

    texts = options.output.with_name(f"{options.output.name}-text")
    texts.mkdir(parents=True, exist_ok=True)
    learned, kept = split(options.lexicon, texts)
    recipe = Recipe.of(
        train=(str(learned),),
        dev=(str(kept),),
        output=str(options.output),
        max_steps=options.max_steps,
        # Sub-words of phonemes alone: each becomes one piece, and a spelling stays a row of letters.
        tokenizer_sides="target",
        metrics=("wer", "per"),
    )
    run = train(recipe)
    for translation in Translator(run)(options.pronounce):
        print(translation.text)


if __name__ == "__main__":
    main()
