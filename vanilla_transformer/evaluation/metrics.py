"""Metrics by name; each score has a signature that says how it was computed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric as SacrebleuMetric

from vanilla_transformer.errors import MetricError
from vanilla_transformer.evaluation.error_rates import phoneme_error_rate, word_error_rate
from vanilla_transformer.evaluation.moses_tokenization import LANGUAGES, MosesTokenization
from vanilla_transformer.limits import refuse_one_text
from vanilla_transformer.suggestions import closest


@dataclass(frozen=True)
class Score:
    """The value of a metric, in percent unless its name says otherwise, and its signature."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.2f}  ({self.signature})"


@dataclass(frozen=True)
class Metric:
    """A metric's function, and whether lines with the same source are references of one item."""

    measure: Callable[[Sequence[str], Sequence[Sequence[str]]], tuple[float, str]]
    one_item_per_source: bool = False


def _sacrebleu(metric: type[SacrebleuMetric], **settings: Any) -> Metric:
    """The corpus score of one of sacreBLEU's metrics, with its default settings unless others are given."""

    def measure(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
        scorer = metric(**settings)
        # sacreBLEU expects one stream of first references, one of second ones and so on, with None for missing ones.
        streams = [list(stream) for stream in zip_longest(*references)]
        value = scorer.corpus_score(list(predictions), streams).score
        return value, str(scorer.get_signature())

    return Metric(measure)


def _paper_bleu(language: str) -> Metric:
    """Section 6.1: BLEU as the paper's authors computed it, with their tokenization."""

    def measure(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
        tokenize = MosesTokenization(language)
        value, signature = _TOKENIZED_BLEU.measure(
            [tokenize(prediction) for prediction in predictions],
            [[tokenize(reference) for reference in accepted] for accepted in references],
        )
        return value, signature.replace("tok:none", tokenize.signature)

    return Metric(measure)


# As multi-bleu.perl: words are separated by spaces, and a zero n-gram precision makes the score zero.
_TOKENIZED_BLEU = _sacrebleu(BLEU, tokenize="none", smooth_method="none", force=True)
METRICS = {
    "sacrebleu": _sacrebleu(BLEU),
    "chrf": _sacrebleu(CHRF),
    "ter": _sacrebleu(TER),
    "tokenized_bleu": _TOKENIZED_BLEU,
    "paper_bleu": _paper_bleu("de"),
    **{f"paper_bleu:{language}": _paper_bleu(language) for language in LANGUAGES},
    "wer": Metric(word_error_rate, one_item_per_source=True),
    "per": Metric(phoneme_error_rate, one_item_per_source=True),
}


def check_names(names: Iterable[str], metrics: Mapping[str, Metric] = METRICS) -> None:
    """Raises MetricError for an unknown metric, by default one of text, before hours of decoding."""
    for name in names:
        if name not in metrics:
            raise MetricError(f"There is no metric '{name}': {_hint(name, metrics)}")


def _hint(name: str, metrics: Mapping[str, Metric]) -> str:
    metric, _, language = name.partition(":")
    if metric == "paper_bleu" and language and metric in metrics:
        return f"the languages of paper_bleu are {', '.join(LANGUAGES)}."
    known = [name for name in metrics if ":" not in name]
    suggestion = closest(metric, known, cutoff=0.6)
    more = ", paper_bleu:fr and so on" if "paper_bleu" in metrics else ""
    return f"did you mean '{suggestion}'?" if suggestion else f"there are {', '.join(known)}{more}."


def score(
    names: Iterable[str],
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Mapping[str, Metric] = METRICS,
) -> list[Score]:
    """Scores predictions against their references, at least one each, with every metric in `names`."""
    names = list(names)
    check_names(names, metrics)
    refuse_one_text("predictions", predictions)
    for accepted in references:
        refuse_one_text("the references of each prediction", accepted)
    if len(predictions) != len(references):
        raise MetricError(f"{len(predictions):,} predictions cannot be scored against {len(references):,} references.")
    if not predictions or not all(references):
        raise MetricError("Scoring needs at least one prediction, and at least one reference for each.")
    return [Score(name, *metrics[name].measure(predictions, references)) for name in names]
