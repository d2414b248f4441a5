"""Metrics of tags: those of a sentence are separated by spaces."""

from collections.abc import Sequence

from vanilla_transformer.evaluation.label_metrics import signature
from vanilla_transformer.evaluation.metrics import Metric


def _token_accuracy(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    from sklearn.metrics import accuracy_score

    pairs = _words(predictions, references)
    gold, found = ([tag for tags in side for tag in tags] for side in pairs)
    value = 100 * accuracy_score(gold, found)
    return value, signature("right-tags", references, "scikit-learn", words=str(len(gold)))


def _spans(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """Computes F1 of whole spans over all sentences, as conlleval counts them."""
    from seqeval.metrics import f1_score, precision_score, recall_score

    gold, found = _words(predictions, references)
    recall, precision = (100 * measure(gold, found, zero_division=0) for measure in (recall_score, precision_score))
    figures = {"recall": f"{recall:.2f}", "precision": f"{precision:.2f}", "average": "micro", "mode": "conlleval"}
    value = 100 * f1_score(gold, found, zero_division=0)
    return float(value), signature("f1-of-spans", references, "seqeval", **figures)


def _words(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """Returns the tags of each sentence: those given, and those predicted."""
    return [reference.split() for reference, *_ in references], [tags.split() for tags in predictions]


TAG_METRICS = {"token_accuracy": Metric(_token_accuracy), "seqeval": Metric(_spans)}
