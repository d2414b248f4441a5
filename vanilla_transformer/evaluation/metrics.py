"""Metrics by name; each score has a signature that says how it was computed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from vanilla_transformer import __version__
from vanilla_transformer.errors import CorpusError, RecipeError, did_you_mean, refuse_one_text
from vanilla_transformer.evaluation.moses_tokenization import LANGUAGES, MosesTokenization

References = Sequence[Sequence[str]]
"""What is right for each prediction: at least one text."""


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
    """A metric of a task.

    Attributes:
        measure: Computes the value of predictions and its signature.
        by_default: Whether it is computed where no metrics are named.
        one_item_per_source: Whether lines with the same source are references of one item.
    """

    measure: Callable[[Sequence[Any], References], tuple[float, str]]
    by_default: bool = False
    one_item_per_source: bool = False


def signature(counted: str, items: int, **settings: object) -> str:
    """Says what was counted over how many items, and how, in the style of sacreBLEU."""
    how = "".join(f"{name}:{value}|" for name, value in settings.items())
    return f"count:{counted}|items:{items}|{how}version:{__version__}"


def _sacrebleu(metric: str, by_default: bool = False, **settings: Any) -> Metric:
    """The corpus score of one of sacreBLEU's metrics, with its default settings unless others are given."""

    def measure(predictions: Sequence[str], references: References) -> tuple[float, str]:
        from sacrebleu import metrics

        scorer = getattr(metrics, metric)(**settings)
        # sacreBLEU expects one stream of first references, one of second ones and so on, with None for missing ones.
        streams = [list(stream) for stream in zip_longest(*references)]
        value = scorer.corpus_score(list(predictions), streams).score
        return value, str(scorer.get_signature())

    return Metric(measure, by_default)


def _paper_bleu(language: str) -> Metric:
    """Section 6.1: BLEU as the paper's authors computed it, with their tokenization."""

    def measure(predictions: Sequence[str], references: References) -> tuple[float, str]:
        tokenize = MosesTokenization(language)
        value, how = _TOKENIZED_BLEU.measure(
            [tokenize(prediction) for prediction in predictions],
            [[tokenize(reference) for reference in accepted] for accepted in references],
        )
        return value, how.replace("tok:none", tokenize.signature)

    return Metric(measure)


def _word_error_rate(predictions: Sequence[str], references: References) -> tuple[float, str]:
    """Grapheme-to-phoneme word error rate: the share of items that match none of their references."""
    wrong = sum(
        prediction.split() not in [reference.split() for reference in accepted]
        for prediction, accepted in zip(predictions, references, strict=True)
    )
    return 100 * wrong / len(predictions), _signature_of_error_rate("items-that-equal-no-reference", references)


def _phoneme_error_rate(predictions: Sequence[str], references: References) -> tuple[float, str]:
    """Grapheme-to-phoneme phoneme error rate: edits to the nearest reference divided by its length."""
    from rapidfuzz.distance import Levenshtein

    edits = length = 0
    for prediction, accepted in zip(predictions, references, strict=True):
        tokens = prediction.split()
        # Ties go to the longest reference.
        nearest = min((Levenshtein.distance(tokens, one), -len(one)) for one in map(str.split, accepted))
        edits, length = edits + nearest[0], length - nearest[1]
    if not length:
        raise CorpusError("per cannot be computed: all references are empty.")
    return 100 * edits / length, _signature_of_error_rate("edits-per-token-of-nearest-reference", references)


def _signature_of_error_rate(counted: str, references: References) -> str:
    fewest, most = min(map(len, references)), max(map(len, references))
    return signature(counted, len(references), nrefs=most if most == fewest else f"1-{most}", tok="space")


# As multi-bleu.perl: words are separated by spaces, and a zero n-gram precision makes the score zero.
_TOKENIZED_BLEU = _sacrebleu("BLEU", tokenize="none", smooth_method="none", force=True)
METRICS = {
    "sacrebleu": _sacrebleu("BLEU", by_default=True),
    "chrf": _sacrebleu("CHRF", by_default=True),
    "ter": _sacrebleu("TER"),
    "tokenized_bleu": _TOKENIZED_BLEU,
    "paper_bleu": _paper_bleu("de"),
    **{f"paper_bleu:{language}": _paper_bleu(language) for language in LANGUAGES},
    "wer": Metric(_word_error_rate, one_item_per_source=True),
    "per": Metric(_phoneme_error_rate, one_item_per_source=True),
}


def check_names(names: Iterable[str], metrics: Mapping[str, Metric] = METRICS) -> None:
    """Raises RecipeError for an unknown metric, by default one of text, before hours of decoding."""
    for name in names:
        if name not in metrics:
            known = [name for name in metrics if ":" not in name]
            languages = (
                f"; paper_bleu takes :LANGUAGE, one of {', '.join(LANGUAGES)}" if "paper_bleu" in metrics else ""
            )
            hint = did_you_mean(name, known) or "."
            raise RecipeError(f"There is no metric {name!r}{hint} There are {', '.join(known)}{languages}.")


def score(
    names: Iterable[str],
    predictions: Sequence[object],
    references: References,
    metrics: Mapping[str, Metric] = METRICS,
) -> list[Score]:
    """Scores predictions against their references, at least one each, with every metric in `names`."""
    names = list(names)
    check_names(names, metrics)
    refuse_one_text("predictions", predictions)
    for accepted in references:
        refuse_one_text("the references of each prediction", accepted)
    if len(predictions) != len(references):
        raise CorpusError(f"{len(predictions):,} predictions cannot be scored against {len(references):,} references.")
    if not predictions or not all(references):
        raise CorpusError("Scoring needs at least one prediction, and at least one reference for each.")
    return [Score(name, *metrics[name].measure(predictions, references)) for name in names]
