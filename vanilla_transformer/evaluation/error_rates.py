"""Error rates of pronunciations: words of which several are right, and the phonemes in them."""

from collections.abc import Sequence

from rapidfuzz.distance import Levenshtein

from vanilla_transformer import __version__
from vanilla_transformer.errors import MetricError


def word_error_rate(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """Grapheme-to-phoneme word error rate: the share of items that match none of their references."""
    wrong = sum(
        prediction.split() not in [reference.split() for reference in accepted]
        for prediction, accepted in zip(predictions, references, strict=True)
    )
    return 100 * wrong / len(predictions), _signature("items-that-equal-no-reference", references)


def phoneme_error_rate(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """Grapheme-to-phoneme phoneme error rate: edits to the nearest reference divided by its length."""
    edits = length = 0
    for prediction, accepted in zip(predictions, references, strict=True):
        distance, negative_length = min(_distance(prediction, reference) for reference in accepted)
        edits += distance
        length -= negative_length
    if not length:
        raise MetricError("per cannot be computed: all references are empty.")
    return 100 * edits / length, _signature("edits-per-token-of-nearest-reference", references)


def _distance(prediction: str, reference: str) -> tuple[int, int]:
    """Edits between the tokens, and minus the reference's length: ties go to the longest reference."""
    tokens = reference.split()
    return Levenshtein.distance(prediction.split(), tokens), -len(tokens)


def _signature(counted: str, references: Sequence[Sequence[str]]) -> str:
    """Says what was counted, over how many items and references, in the style of sacreBLEU."""
    most = max(map(len, references))
    nrefs = most if most == min(map(len, references)) else f"1-{most}"
    return f"count:{counted}|items:{len(references)}|nrefs:{nrefs}|tok:space|version:{__version__}"
