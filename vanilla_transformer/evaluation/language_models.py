"""Metrics of language models: the cost of texts per token, per character and per byte."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from vanilla_transformer.errors import CorpusError
from vanilla_transformer.evaluation.metrics import Metric, References, signature


class TextCost(NamedTuple):
    """The cost of a text: the sum over its tokens of their negative log-probabilities.

    `context` is the maximum number of tokens that the model saw at once: a longer text is scored in blocks of that
    size. `ends` tells whether the end of the text is one of its tokens.
    """

    nats: float = 0.0
    tokens: int = 0
    context: int = 0
    ends: bool = True

    def __str__(self) -> str:
        """Returns the line of `predict` and `evaluate --output`: log-probability in nats, and number of tokens."""
        return f"{-self.nats:.4f}\t{self.tokens}" if self.tokens else ""


def _per(unit: str, size: Callable[[str], int] | None, by_default: bool = True) -> Metric:
    """Perplexity per token, or bits per unit counted by `size`."""

    def measure(costs: Sequence[TextCost], references: References) -> tuple[float, str]:
        nats, tokens = math.fsum(cost.nats for cost in costs), sum(cost.tokens for cost in costs)
        # A text of only white space is left out, as in training.
        texts = [text for (text, *_), cost in zip(references, costs, strict=True) if cost.tokens]
        count = tokens if size is None else sum(map(size, texts))
        if not count:
            raise CorpusError("A language model cannot be scored on texts that are all empty.")
        try:
            value = math.exp(nats / count) if size is None else nats / math.log(2) / count
        except OverflowError:
            value = math.inf
        scored = max(costs, key=lambda cost: cost.context)
        how = {f"{unit}s": count, "context": scored.context}
        counted = f"perplexity-of-{unit}" if size is None else f"bits-per-{unit}"
        return value, signature(counted, len(texts), **how, ends="counted" if scored.ends else "none")

    return Metric(measure, by_default)


LANGUAGE_MODEL_METRICS = {
    "perplexity": _per("token", None),
    "bits_per_character": _per("character", len),
    "bits_per_byte": _per("byte", lambda text: len(text.encode()), by_default=False),
}
# The masked tokens depend on the text alone.
MASKED_METRICS = {"masked_perplexity": _per("masked-token", None)}
