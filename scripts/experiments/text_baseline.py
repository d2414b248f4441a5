"""Trains a text classifier without a neural network as a baseline: TF-IDF of words and logistic regression."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tyro
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from tyro.conf import OmitArgPrefixes

from vanilla_transformer.data.corpus import read_corpus
from vanilla_transformer.data.sources import parse_corpus
from vanilla_transformer.evaluation.metrics import score
from vanilla_transformer.extras.labelling.label_metrics import LABEL_METRICS
from vanilla_transformer.extras.labelling.text_forms import LABELLED_TEXTS

# Inverse penalties on the weights; five-fold cross-validation on the training data chooses one.
INVERSE_PENALTIES = (1.0, 10.0, 100.0)


@dataclass(frozen=True)
class TextBaseline:
    """Train TF-IDF with logistic regression on labelled texts, and score it as `evaluate` scores a classifier."""

    train: tuple[str, ...]
    """Texts with labels, as `train` takes them: `train.tsv text_column=2 label_column=1`."""
    dev: tuple[str, ...]
    """Texts to score, in the same form."""
    test: tuple[str, ...] = ()
    """Texts that were kept back while recipes were chosen, to score as well."""
    seed: int = 1
    """Draws the five parts."""


def main(words: Sequence[str]) -> None:
    """Prints the scores as JSON."""
    options = tyro.cli(TextBaseline, prog="scripts.experiments.text_baseline", args=words, config=(OmitArgPrefixes,))
    texts, labels = _read(options.train)
    held_out = {part: _read(files) for part, files in (("dev", options.dev), ("test", options.test)) if files}
    begun = time.perf_counter()
    classifier = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\S+"),
        LogisticRegression(max_iter=2000, random_state=options.seed),
    )
    search = GridSearchCV(classifier, {"logisticregression__C": INVERSE_PENALTIES}, cv=5).fit(texts, labels)
    found = {part: search.predict(sources).tolist() for part, (sources, _) in held_out.items()}
    seconds = time.perf_counter() - begun
    scores = {part: _scores(found[part], right) for part, (_, right) in held_out.items()}
    print(json.dumps({"scores": scores, "seconds": round(seconds, 1), **search.best_params_}, indent=1))


def _scores(found: list[str], right: list[str]) -> list[dict[str, Any]]:
    return [asdict(one) for one in score(LABEL_METRICS, found, [[label] for label in right], LABEL_METRICS)]


def _read(words: tuple[str, ...]) -> tuple[list[str], list[str]]:
    corpus = read_corpus(parse_corpus(words), form=LABELLED_TEXTS)
    texts = [f"{text} {pair}".strip() for text, pair in zip(corpus["text"], corpus["text_pair"], strict=True)]
    return texts, list(corpus["label"])


if __name__ == "__main__":
    main(sys.argv[1:])
