"""Metrics of labels."""

from collections.abc import Sequence
from importlib.metadata import version

from vanilla_transformer import __version__
from vanilla_transformer.evaluation.metrics import Metric


def signature(counted: str, references: Sequence[Sequence[str]], library: str, **settings: str) -> str:
    """Gives the unit counted, the number of items, and the version of the library."""
    how = [f"{name}:{value}" for name, value in settings.items()]
    parts = [f"count:{counted}", f"items:{len(references)}", *how, f"{library}:{version(library)}"]
    return "|".join([*parts, f"version:{__version__}"])


def _accuracy(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    from sklearn.metrics import accuracy_score

    value = 100 * accuracy_score([reference for reference, *_ in references], list(predictions))
    return value, signature("right-labels", references, "scikit-learn")


def _macro_f1(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """Averages the F1 of each label that is given or predicted."""
    from sklearn.metrics import f1_score

    gold = [reference for reference, *_ in references]
    value = 100 * f1_score(gold, list(predictions), average="macro", zero_division=0)
    labels = str(len({*gold, *predictions}))
    return value, signature("mean-f1-of-labels", references, "scikit-learn", labels=labels, zero_division="0")


LABEL_METRICS = {"accuracy": Metric(_accuracy), "macro_f1": Metric(_macro_f1)}
