"""Metrics of labels, and of tags, of which those of a sentence are separated by spaces."""

from collections.abc import Sequence
from importlib.metadata import version

from vanilla_transformer.evaluation.metrics import Metric, References, signature


def _accuracy(predictions: Sequence[str], references: References) -> tuple[float, str]:
    from sklearn.metrics import accuracy_score

    value = 100 * accuracy_score([reference for reference, *_ in references], list(predictions))
    return value, signature("right-labels", len(references), **_version("scikit-learn"))


def _macro_f1(predictions: Sequence[str], references: References) -> tuple[float, str]:
    """Averages the F1 of each label that is given or predicted."""
    from sklearn.metrics import f1_score

    gold = [reference for reference, *_ in references]
    value = 100 * f1_score(gold, list(predictions), average="macro", zero_division=0)
    how = {"labels": len({*gold, *predictions}), "zero_division": 0, **_version("scikit-learn")}
    return value, signature("mean-f1-of-labels", len(references), **how)


def _token_accuracy(predictions: Sequence[str], references: References) -> tuple[float, str]:
    from sklearn.metrics import accuracy_score

    gold, found = ([tag for tags in side for tag in tags] for side in _tags(predictions, references))
    value = 100 * accuracy_score(gold, found)
    return value, signature("right-tags", len(references), words=len(gold), **_version("scikit-learn"))


def _spans(predictions: Sequence[str], references: References) -> tuple[float, str]:
    """Computes F1 of whole spans over all sentences, as conlleval counts them."""
    from seqeval.metrics import f1_score, precision_score, recall_score

    gold, found = _tags(predictions, references)
    recall, precision = (100 * measure(gold, found, zero_division=0) for measure in (recall_score, precision_score))
    how = {"recall": f"{recall:.2f}", "precision": f"{precision:.2f}", "average": "micro", "mode": "conlleval"}
    value = 100 * f1_score(gold, found, zero_division=0)
    return float(value), signature("f1-of-spans", len(references), **how, **_version("seqeval"))


def _tags(predictions: Sequence[str], references: References) -> tuple[list[list[str]], list[list[str]]]:
    """Returns the tags of each sentence: those given, and those predicted."""
    return [reference.split() for reference, *_ in references], [tags.split() for tags in predictions]


def _version(library: str) -> dict[str, str]:
    return {library: version(library)}


LABEL_METRICS = {"accuracy": Metric(_accuracy, by_default=True), "macro_f1": Metric(_macro_f1, by_default=True)}
TAG_METRICS = {"token_accuracy": Metric(_token_accuracy, by_default=True), "seqeval": Metric(_spans)}
