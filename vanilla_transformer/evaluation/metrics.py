"""Metrics by name, each score with a signature that says how it was counted."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric as SacrebleuMetric

from vanilla_transformer import __version__


class MetricError(ValueError):
    """A metric that does not exist, or texts that cannot be scored."""


@dataclass(frozen=True)
class Score:
    """A metric's value, in percent, and how it was counted."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.2f}  ({self.signature})"


@dataclass(frozen=True)
class Metric:
    """How a metric counts, and whether lines of one source are references of one item."""

    measure: Callable[[Sequence[str], Sequence[Sequence[str]]], tuple[float, str]]
    one_item_per_source: bool = False


def _sacrebleu(metric: type[SacrebleuMetric]) -> Metric:
    """The corpus score of one of sacrebleu's metrics, with its settings untouched."""

    def measure(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
        scorer = metric()
        # sacrebleu wants one stream for the first references, one for the second and so on, None where there is none.
        streams = [list(stream) for stream in zip_longest(*references)]
        value = scorer.corpus_score(list(predictions), streams).score
        return value, str(scorer.get_signature())

    return Metric(measure)


def _words_wrong(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """Grapheme-to-phoneme word error rate: the share of items that equal none of their references."""
    wrong = sum(
        prediction.split() not in [reference.split() for reference in accepted]
        for prediction, accepted in zip(predictions, references, strict=True)
    )
    return 100 * wrong / len(predictions), _signature("items-that-equal-no-reference", references)


def _phonemes_wrong(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """Grapheme-to-phoneme phoneme error rate: edits to the nearest reference over that reference's length."""
    edits = length = 0
    for prediction, accepted in zip(predictions, references, strict=True):
        distance, negative_length = min(_distance(prediction, reference) for reference in accepted)
        edits += distance
        length -= negative_length
    if not length:
        raise MetricError("per has nothing to count: all references are empty.")
    return 100 * edits / length, _signature("edits-per-token-of-nearest-reference", references)


def _distance(prediction: str, reference: str) -> tuple[int, int]:
    """Edits between the tokens, and minus the reference's length: of equally near ones the longest is the nearest."""
    tokens = reference.split()
    return Levenshtein.distance(prediction.split(), tokens), -len(tokens)


def _signature(counted: str, references: Sequence[Sequence[str]]) -> str:
    """What was counted, over how many items and references, in sacrebleu's manner."""
    most = max(map(len, references))
    nrefs = most if most == min(map(len, references)) else f"1-{most}"
    return f"count:{counted}|items:{len(references)}|nrefs:{nrefs}|tok:space|version:{__version__}"


METRICS = {
    "sacrebleu": _sacrebleu(BLEU),
    "chrf": _sacrebleu(CHRF),
    "ter": _sacrebleu(TER),
    "wer": Metric(_words_wrong, one_item_per_source=True),
    "per": Metric(_phonemes_wrong, one_item_per_source=True),
}


def check_names(names: Iterable[str]) -> None:
    """Raises MetricError for a name that is no metric, before hours of decoding are spent on it."""
    for name in names:
        if name not in METRICS:
            near = difflib.get_close_matches(name, METRICS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(METRICS)}."
            raise MetricError(f"There is no metric '{name}': {hint}")


def score(names: Iterable[str], predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[Score]:
    """Scores each prediction against its references, of which there is at least one, with every metric named."""
    names = list(names)
    check_names(names)
    if len(predictions) != len(references):
        raise MetricError(f"{len(predictions):,} predictions cannot be scored against {len(references):,} references.")
    if not predictions or not all(references):
        raise MetricError("Scoring needs at least one prediction, and a reference for each.")
    return [Score(name, *METRICS[name].measure(predictions, references)) for name in names]
