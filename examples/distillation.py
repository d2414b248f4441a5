"""Make training pairs for a small model, the student: text and its translation by a large one, the teacher.

    python examples/distillation.py teacher train.en pairs.en pairs.de
    vanilla-transformer train --train pairs.en pairs.de --tokenizer teacher --preset tiny --encoder-layers 6 \\
        --decoder-layers 1 --dev dev.en dev.de --output student

The encoder runs once a sentence, the decoder once a word, so put the layers into the encoder (Kasai et al. 2020);
with few weights and regular targets, try `--dropout 0`. It does not help if the teacher is hardly better than the
student trained on the pairs alone: first try `--precision int8`, `--num-beams 1` and an export of the teacher. The
text may be the source side of the teacher's own pairs, or any other in that language (Kim and Rush 2016). Empty and
repeated lines are not translated. Of the translations, those are left out that say nothing, were made of a part of
the line, or are far longer or shorter than it (the teacher rambled or stopped early): a student would learn just
that.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from vanilla_transformer import Translator
from vanilla_transformer.translation import TranslationResult

LENGTH_RATIO = 3


def fault(translation: TranslationResult) -> str | None:
    """Returns why a student should not learn from a translation; None if it should."""
    tokens = sorted((len(translation.source_ids), len(translation.hypotheses[0].ids)))
    if not translation.text.strip():
        return "without a translation"
    if translation.truncated:
        return "too long to be translated whole"
    return "of very different lengths" if tokens[1] > LENGTH_RATIO * tokens[0] else None


def main(argv: Sequence[str] | None = None) -> None:
    """Translates the lines, writes the pairs for the student, and prints what was left out."""
    parser = argparse.ArgumentParser(description="Make training pairs for a small model from a large one.")
    parser.add_argument("teacher", help="directory or Hub id of the large model")
    parser.add_argument("text", type=Path, help="file in the source language, one sentence per line")
    parser.add_argument("sources", type=Path, help="file to write: the lines")
    parser.add_argument("targets", type=Path, help="file to write: their translations")
    options = parser.parse_args(argv)

    # The search of the model's own generation config: the student learns what the teacher would answer.
    translator = Translator(options.teacher)
    with options.text.open(encoding="utf-8") as file:
        read = [line.strip() for line in file]
    lines = list(dict.fromkeys(filter(None, read)))
    dropped = Counter({"empty or repeated": len(read) - len(lines)})
    with (
        options.sources.open("x", encoding="utf-8") as sources,
        options.targets.open("x", encoding="utf-8") as targets,
    ):
        for line, translation in zip(lines, translator(lines), strict=True):
            reason = fault(translation)
            if reason is not None:
                dropped[reason] += 1
                continue
            sources.write(f"{line}\n")
            targets.write(f"{translation.text}\n")
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    print(
        f"{len(read) - dropped.total():,} pairs of {len(read):,} lines; left out: {reasons or 'none'}", file=sys.stderr
    )


if __name__ == "__main__":
    main()
