"""Metrics of labels and of numbers."""

import warnings
from collections.abc import Sequence
from importlib.metadata import version

from vanilla_transformer import __version__
from vanilla_transformer.evaluation.metrics import Metric, MetricError
from vanilla_transformer.extras.labelling.text_forms import BETWEEN_LABELS


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


def _f1_of_sets(average: str) -> Metric:
    """F1 of sets of labels, separated by commas: over all labels, or averaged over labels."""

    def measure(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
        from sklearn.metrics import f1_score
        from sklearn.preprocessing import MultiLabelBinarizer

        gold, found = ([_set(text) for text in side] for side in ([one for one, *_ in references], predictions))
        sets = MultiLabelBinarizer().fit([*gold, *found])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # If no text has a label there is nothing to count.
            value = 100 * f1_score(sets.transform(gold), sets.transform(found), average=average, zero_division=0)
        settings = {"average": average, "labels": str(len(sets.classes_)), "zero_division": "0"}
        return float(value), signature("f1-of-sets", references, "scikit-learn", **settings)

    return Metric(measure)


def _subset_accuracy(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    right = sum(_set(found) == _set(gold) for found, (gold, *_) in zip(predictions, references, strict=True))
    signature = f"count:right-sets|items:{len(references)}|version:{__version__}"
    return 100 * right / len(references), signature


def _set(labels: str) -> set[str]:
    return {label.strip() for label in labels.split(BETWEEN_LABELS)} - {""}


def _correlation(name: str) -> Metric:
    """A correlation of `scipy.stats`; 0 if all numbers of a side are equal."""

    def measure(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
        from scipy import stats

        found, gold = _numbers(predictions, references)
        constant = len(set(found)) == 1 or len(set(gold)) == 1
        value = 0.0 if constant else float(getattr(stats, f"{name}r")(found, gold)[0])
        settings = {"sides": "constant"} if constant else {}
        return value, signature(name, references, "scipy", **settings)

    return Metric(measure)


def _squared_error(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    from sklearn.metrics import mean_squared_error

    found, gold = _numbers(predictions, references)
    return float(mean_squared_error(gold, found)), signature("mean-squared-error", references, "scikit-learn")


def _numbers(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[list[float], list[float]]:
    """Returns the numbers found and the numbers given; an empty text has neither."""
    pairs = [(float(one), float(gold)) for one, (gold, *_) in zip(predictions, references, strict=True) if one]
    if not pairs:
        raise MetricError("There is no text with a number to score.")
    return [found for found, _ in pairs], [gold for _, gold in pairs]


LABEL_METRICS = {"accuracy": Metric(_accuracy), "macro_f1": Metric(_macro_f1)}
LABEL_SET_METRICS = {
    "micro_f1": _f1_of_sets("micro"),
    "macro_f1": _f1_of_sets("macro"),
    "subset_accuracy": Metric(_subset_accuracy),
}
NUMBER_METRICS = {
    "pearson": _correlation("pearson"),
    "spearman": _correlation("spearman"),
    "mean_squared_error": Metric(_squared_error),
}
