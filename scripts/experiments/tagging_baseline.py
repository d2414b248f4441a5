"""What a tagger without a neural network makes of tagged words: a conditional random field over features of words.

Of each word and its neighbours: the word itself, its first and last letters, and its shape. It needs python-crfsuite.
"""

import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro
from tyro.conf import OmitArgPrefixes

from vanilla_transformer.data.columns import BETWEEN_WORDS, TAGGED_SENTENCES
from vanilla_transformer.data.corpus import read_corpus
from vanilla_transformer.data.sources import parse_corpus
from vanilla_transformer.evaluation.labels import TAG_METRICS
from vanilla_transformer.evaluation.metrics import score

_LONGEST_AFFIX = 4


@dataclass(frozen=True)
class TaggingBaseline:
    """Train a conditional random field on CoNLL columns, and score it as `evaluate` scores a tagger."""

    train: tuple[str, ...]
    """Words and tags, as `train` takes them: `train.conllu text_column=2 label_column=4`."""
    dev: tuple[str, ...]
    """Sentences to score, in the same form."""
    iterations: int = 60
    """Most iterations of L-BFGS."""
    l1: float = 0.1
    """Penalty on the sum of the weights."""
    l2: float = 0.01
    """Penalty on the sum of their squares."""


def features(words: Sequence[str]) -> list[list[str]]:
    """What the field sees at each word of a sentence."""
    shapes = [_shape(word) for word in words]
    rows = []
    for place, word in enumerate(words):
        lower = word.lower()
        lengths = range(1, min(len(lower), _LONGEST_AFFIX) + 1)
        row = ["bias", f"word={lower}", f"shape={shapes[place]}"]
        row += [f"suffix={lower[-length:]}" for length in lengths] + [f"prefix={lower[:length]}" for length in lengths]
        for offset in (-2, -1, 1, 2):
            beside = place + offset
            if 0 <= beside < len(words):
                row += [f"{offset}:word={words[beside].lower()}", f"{offset}:suffix={words[beside].lower()[-3:]}"]
                row += [f"{offset}:shape={shapes[beside]}"] * (abs(offset) == 1)
            else:
                row.append(f"{offset}:none")
        rows.append(row)
    return rows


def main(words: Sequence[str]) -> None:
    """Prints the scores as JSON."""
    import pycrfsuite

    options = tyro.cli(
        TaggingBaseline, prog="scripts.experiments.tagging_baseline", args=words, config=(OmitArgPrefixes,)
    )
    begun = time.perf_counter()
    trainer = pycrfsuite.Trainer(verbose=False)
    trainer.set_params({"c1": options.l1, "c2": options.l2, "max_iterations": options.iterations})
    for sentence, tags in _read(options.train):
        trainer.append(features(sentence), tags)
    dev = _read(options.dev)
    with tempfile.TemporaryDirectory() as directory:
        model = str(Path(directory, "model"))
        trainer.train(model)
        tagger = pycrfsuite.Tagger()
        tagger.open(model)
        found = [" ".join(tagger.tag(features(sentence))) for sentence, _ in dev]
        tagger.close()
    metrics = ["token_accuracy"]
    scores = score(metrics, found, [[" ".join(tags)] for _, tags in dev], TAG_METRICS)
    print(
        json.dumps({"scores": list(map(asdict, scores)), "seconds": round(time.perf_counter() - begun, 1)}, indent=1)
    )


def _read(words: tuple[str, ...]) -> list[tuple[list[str], list[str]]]:
    corpus = read_corpus(parse_corpus(words), form=TAGGED_SENTENCES)
    rows = zip(corpus["words"], corpus["tags"], strict=True)
    return [(sentence.split(BETWEEN_WORDS), tags.split(BETWEEN_WORDS)) for sentence, tags in rows]


def _shape(word: str) -> str:
    """Capitals as X, small letters as x, digits as 9, and each run of one kind but once."""
    marks = re.sub(r"[^\W\d_]", lambda letter: "X" if letter[0].isupper() else "x", word)
    return re.sub(r"(.)\1+", r"\1", re.sub(r"\d", "9", marks))


if __name__ == "__main__":
    main(sys.argv[1:])
