"""Learn to correct spelling, from nothing but correct text.

    python examples/correct_spelling.py sentences.txt my-model --correct "A dgo runs in teh snow."

The text has one sentence a line. The pairs to learn from are made of it: each sentence is spoiled as fingers do it
(two letters swapped, one left out, doubled, or hit beside), and the sentence itself is what to write. A few of each
hundred are left as they are, so that the model learns to leave right ones alone. The last hundredth of the text is
kept aside and scored. If interrupted, run it again.
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from vanilla_transformer import Recipe, Translator, train

ROWS = "qwertyuiop", "asdfghjkl", "zxcvbnm"
BESIDE = {row[i]: row[max(0, i - 1) : i] + row[i + 1 : i + 2] for row in ROWS for i in range(len(row))}


def spoil(sentence: str, draw: random.Random, errors_per_letter: float = 0.05) -> str:
    """The sentence with some of its letters swapped, lost, doubled or hit beside."""
    letters = list(sentence)
    for place in range(len(letters) - 1):
        if not letters[place].isalpha() or draw.random() > errors_per_letter:
            continue
        kind = draw.choice(["swap", "lose", "double", "beside"])
        if kind == "swap" and letters[place + 1].isalpha():
            letters[place], letters[place + 1] = letters[place + 1], letters[place]
        elif kind == "lose":
            letters[place] = ""
        elif kind == "double":
            letters[place] *= 2
        elif kind == "beside" and letters[place] in BESIDE:
            letters[place] = draw.choice(BESIDE[letters[place]])
    return "".join(letters)


def write_pairs(text: str, directory: Path, copies: int) -> None:
    """`train.spoiled` and `train.right`, with each sentence spoiled in several ways, and the same for dev."""
    sentences = [line for line in Path(text).read_text(encoding="utf-8").splitlines() if line.strip()]
    aside = max(1, len(sentences) // 100)
    if len(sentences) < 2:
        raise SystemExit(f"{text} has fewer than two sentences: one of them is kept aside.")
    draw = random.Random(1)
    for name, part, times in (("train", sentences[:-aside], copies), ("dev", sentences[-aside:], 1)):
        pairs = [(spoil(line, draw) if draw.random() > 0.05 else line, line) for line in part for _ in range(times)]
        for suffix, lines in zip(("spoiled", "right"), zip(*pairs, strict=True), strict=True):
            (directory / f"{name}.{suffix}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Makes the pairs, trains, and corrects the sentences given."""
    parser = argparse.ArgumentParser(description="Learn to correct spelling from correct text.")
    parser.add_argument("text", help="file of correct sentences, one per line")
    parser.add_argument("output", type=Path, help="directory for the model")
    parser.add_argument("--copies", type=int, default=3, help="ways in which each sentence is spoiled")
    parser.add_argument("--max-steps", type=int, help="length of training (default: chosen from the data)")
    parser.add_argument("--correct", nargs="+", default=(), metavar="SENTENCE", help="sentences to correct")
    options = parser.parse_args(argv)

    texts = options.output.with_name(f"{options.output.name}-text")
    texts.mkdir(parents=True, exist_ok=True)
    write_pairs(options.text, texts, options.copies)
    recipe = Recipe.of(
        train=(str(texts / "train.spoiled"), str(texts / "train.right")),
        dev=(str(texts / "dev.spoiled"), str(texts / "dev.right")),
        output=str(options.output),
        max_steps=options.max_steps,
        metrics=("chrf", "wer"),
    )
    run = train(recipe)
    for translation in Translator(run)(options.correct):
        print(translation.text)


if __name__ == "__main__":
    main()
