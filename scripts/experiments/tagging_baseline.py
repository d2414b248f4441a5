"""Trains taggers without a neural network as a baseline: a conditional random field over features, or UDPipe 1.

The field's features of each word and its neighbours are the word itself, its first and last letters, and its shape; it
needs python-crfsuite. UDPipe's tagger (MorphoDiTa, an averaged perceptron) has features of its own; it needs
ufal.udpipe.
"""

import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from tyro.conf import OmitArgPrefixes

from vanilla_transformer.data.columns import BETWEEN_WORDS
from vanilla_transformer.data.corpus import read_corpus
from vanilla_transformer.data.sources import parse_corpus
from vanilla_transformer.evaluation.metrics import score
from vanilla_transformer.extras.labelling.conll import TAGGED_SENTENCES
from vanilla_transformer.extras.labelling.tag_metrics import TAG_METRICS

_LONGEST_AFFIX = 4


@dataclass(frozen=True)
class TaggingBaseline:
    """Train a tagger on CoNLL columns, and score it as `evaluate` scores a tagger."""

    train: tuple[str, ...]
    """Words and tags, as `train` takes them: `train.conllu text_column=2 label_column=4`."""
    dev: tuple[str, ...]
    """Sentences to score, in the same form."""
    tagger: Literal["crf", "udpipe"] = "crf"
    """A conditional random field, or UDPipe's tagger."""
    iterations: int | None = None
    """Most iterations of the field's L-BFGS, by default 60, or those of UDPipe's tagger, by default 20."""
    l1: float = 0.1
    """Penalty on the sum of its weights."""
    l2: float = 0.01
    """Penalty on the sum of their squares."""


Sentences = Sequence[tuple[list[str], list[str]]]


def features(words: Sequence[str]) -> list[list[str]]:
    """Returns the field's features of each word of a sentence."""
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
    options = tyro.cli(
        TaggingBaseline, prog="scripts.experiments.tagging_baseline", args=words, config=(OmitArgPrefixes,)
    )
    begun = time.perf_counter()
    train, dev = _read(options.train), _read(options.dev)
    with tempfile.TemporaryDirectory() as directory:
        tagged = _by_udpipe if options.tagger == "udpipe" else _by_field
        found = [" ".join(tags) for tags in tagged(options, train, [sentence for sentence, _ in dev], directory)]
    metrics = ["token_accuracy"]
    scores = score(metrics, found, [[" ".join(tags)] for _, tags in dev], TAG_METRICS)
    print(
        json.dumps({"scores": list(map(asdict, scores)), "seconds": round(time.perf_counter() - begun, 1)}, indent=1)
    )


def _by_field(options: TaggingBaseline, train: Sentences, dev: Sequence[list[str]], directory: str) -> list[list[str]]:
    import pycrfsuite

    trainer = pycrfsuite.Trainer(verbose=False)
    trainer.set_params({"c1": options.l1, "c2": options.l2, "max_iterations": options.iterations or 60})
    for sentence, tags in train:
        trainer.append(features(sentence), tags)
    model = str(Path(directory, "model"))
    trainer.train(model)
    tagger = pycrfsuite.Tagger()
    tagger.open(model)
    found = [list(tagger.tag(features(sentence))) for sentence in dev]
    tagger.close()
    return found


def _by_udpipe(
    options: TaggingBaseline, train: Sentences, dev: Sequence[list[str]], directory: str
) -> list[list[str]]:
    from ufal import udpipe

    treebank = udpipe.Sentences()
    for sentence, tags in train:
        treebank.push_back(_udpipe_sentence(sentence, tags))
    none, settings, error = udpipe.Trainer.NONE, f"iterations={options.iterations or 20}", udpipe.ProcessingError()
    trained = udpipe.Trainer.train("morphodita_parsito", treebank, udpipe.Sentences(), none, settings, none, error)
    if error.occurred():
        raise SystemExit(f"UDPipe cannot be trained: {error.message}")
    path = Path(directory, "model")
    path.write_bytes(trained)
    model, found = udpipe.Model.load(str(path)), []
    for words in dev:
        sentence = _udpipe_sentence(words)
        model.tag(sentence, udpipe.Model.DEFAULT)
        # The first word is the root.
        found.append([word.upostag for word in list(sentence.words)[1:]])
    return found


def _udpipe_sentence(words: Sequence[str], tags: Sequence[str] = ()) -> Any:
    from ufal import udpipe

    sentence = udpipe.Sentence()
    for place, word in enumerate(words):
        added = sentence.addWord(word)
        if tags:
            added.upostag = tags[place]
    return sentence


def _read(words: tuple[str, ...]) -> Sentences:
    corpus = read_corpus(parse_corpus(words), form=TAGGED_SENTENCES)
    rows = zip(corpus["words"], corpus["tags"], strict=True)
    return [(sentence.split(BETWEEN_WORDS), tags.split(BETWEEN_WORDS)) for sentence, tags in rows]


def _shape(word: str) -> str:
    """Maps capitals to X, small letters to x and digits to 9, and shortens each run of one kind to one character."""
    marks = re.sub(r"[^\W\d_]", lambda letter: "X" if letter[0].isupper() else "x", word)
    return re.sub(r"(.)\1+", r"\1", re.sub(r"\d", "9", marks))


if __name__ == "__main__":
    main(sys.argv[1:])
