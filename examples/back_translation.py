"""Make training pairs from text in the target language, which a reverse model translates back.

    vanilla-transformer train --train real.de real.en --output de-en
    python examples/back_translation.py de-en mono.de synthetic.en synthetic.de
    vanilla-transformer train --train real.en real.de weight=1 + synthetic.en synthetic.de weight=1 --output en-de

The machine writes the sources, people wrote the targets (Sennrich et al. 2016). It does not help if the text differs
in kind from what will be translated, if the reverse model is bad, or before the model has learned the pairs
themselves: compare with pairs alone at the same number of steps. `--sample` draws translations, which has been found
better with much text and a good reverse model (Edunov et al. 2018). No filter notices a model of the wrong
direction. Empty and repeated lines are not translated. Of the translations, those are left out that say nothing,
were made of a part of the line, are far longer or shorter than it (the model rambled or stopped early), or repeat
its words (the model copied instead of translating).
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vanilla_transformer import Translator
from vanilla_transformer.translation import TranslationResult

LENGTH_RATIO, COPIED_WORDS = 3, 0.5


def fault(line: str, translation: TranslationResult) -> str | None:
    """Returns why a pair teaches nothing; None if it may teach something."""
    tokens = sorted((len(translation.source_ids), len(translation.hypotheses[0].ids)))
    if not translation.text.strip():
        return "without a translation"
    if translation.truncated:
        return "too long to be translated whole"
    if tokens[1] > LENGTH_RATIO * tokens[0]:
        return "of very different lengths"
    words = re.findall(r"[^\W\d_]+", translation.text.casefold())  # Names of numbers are the same everywhere.
    known = set(re.findall(r"[^\W\d_]+", line.casefold()))
    if sum(word in known for word in words) > COPIED_WORDS * len(words):
        return "copied"
    return None


def main(argv: Sequence[str] | None = None) -> None:
    """Translates the lines, writes the pairs that may teach something, and prints what was left out."""
    parser = argparse.ArgumentParser(description="Make training pairs from text in the target language.")
    parser.add_argument("model", help="model that translates from the target language into the source language")
    parser.add_argument("text", type=Path, help="file in the target language, one sentence per line")
    parser.add_argument("sources", type=Path, help="file to write: the translations")
    parser.add_argument("targets", type=Path, help="file to write: the lines they were made of")
    parser.add_argument("--sample", action="store_true", help="draw translations at random instead of searching")
    options = parser.parse_args(argv)

    with options.text.open(encoding="utf-8") as file:
        read = [line.strip() for line in file]
    lines = list(dict.fromkeys(filter(None, read)))
    dropped = Counter({"empty or repeated": len(read) - len(lines)})
    search: dict[str, Any] = {"do_sample": True, "num_beams": 1} if options.sample else {}
    translator = Translator(options.model, **search)
    with (
        options.sources.open("x", encoding="utf-8") as sources,
        options.targets.open("x", encoding="utf-8") as targets,
    ):
        for line, translation in zip(lines, translator(lines), strict=True):
            reason = fault(line, translation)
            if reason is not None:
                dropped[reason] += 1
                continue
            sources.write(f"{translation.text}\n")
            targets.write(f"{line}\n")
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    print(
        f"{len(read) - dropped.total():,} pairs of {len(read):,} lines; left out: {reasons or 'none'}", file=sys.stderr
    )


if __name__ == "__main__":
    main()
