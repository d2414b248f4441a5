"""Metrics of labels: of texts, and of the words of a sentence, whose labels stand with spaces between them."""

from collections.abc import Sequence
from importlib.metadata import version

from vanilla_transformer import __version__
from vanilla_transformer.evaluation.metrics import Metric


def _signature(counted: str, references: Sequence[Sequence[str]], library: str, **settings: str) -> str:
    """What was counted, over how many items, and by which version of a library."""
    how = [f"{name}:{value}" for name, value in settings.items()]
    parts = [f"count:{counted}", f"items:{len(references)}", *how, f"{library}:{version(library)}"]
    return "|".join([*parts, f"version:{__version__}"])


def _accuracy(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    from sklearn.metrics import accuracy_score

    value = 100 * accuracy_score([reference for reference, *_ in references], list(predictions))
    return value, _signature("right-labels", references, "scikit-learn")


def _macro_f1(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """The mean of the F1 of each label that is given or predicted."""
    from sklearn.metrics import f1_score

    gold = [reference for reference, *_ in references]
    value = 100 * f1_score(gold, list(predictions), average="macro", zero_division=0)
    labels = str(len({*gold, *predictions}))
    return value, _signature("mean-f1-of-labels", references, "scikit-learn", labels=labels, zero_division="0")


def _token_accuracy(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    from sklearn.metrics import accuracy_score

    pairs = _words(predictions, references)
    gold, found = ([tag for tags in side for tag in tags] for side in pairs)
    value = 100 * accuracy_score(gold, found)
    return value, _signature("right-tags", references, "scikit-learn", words=str(len(gold)))


def _spans(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """F1 of whole spans over all sentences, as conlleval counts them."""
    from seqeval.metrics import f1_score, precision_score, recall_score

    gold, found = _words(predictions, references)
    recall, precision = (100 * measure(gold, found, zero_division=0) for measure in (recall_score, precision_score))
    figures = {"recall": f"{recall:.2f}", "precision": f"{precision:.2f}", "average": "micro", "mode": "conlleval"}
    value = 100 * f1_score(gold, found, zero_division=0)
    return float(value), _signature("f1-of-spans", references, "seqeval", **figures)


def _words(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """The tags of each sentence: those given, and those found."""
    return [reference.split() for reference, *_ in references], [tags.split() for tags in predictions]


LABEL_METRICS = {"accuracy": Metric(_accuracy), "macro_f1": Metric(_macro_f1)}
TAG_METRICS = {"token_accuracy": Metric(_token_accuracy), "seqeval": Metric(_spans)}
