"""Metrics of language models: the cost of texts per token, per character and per byte."""

import math
from collections.abc import Callable, Sequence

from vanilla_transformer import __version__
from vanilla_transformer.errors import MetricError
from vanilla_transformer.evaluation.metrics import Metric
from vanilla_transformer.text_cost import TextCost


def _per(unit: str, size: Callable[[str], int] | None) -> Metric:
    """Perplexity per token, or bits per unit counted by `size`."""

    def measure(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
        costs = [TextCost.parse(one) for one in predictions]
        nats, tokens = math.fsum(cost.nats for cost in costs), sum(cost.tokens for cost in costs)
        # A text of only white space is left out, as in training.
        texts = [text for (text, *_), cost in zip(references, costs, strict=True) if cost.tokens]
        count = tokens if size is None else sum(map(size, texts))
        if not count:
            raise MetricError("A language model cannot be scored on texts that are all empty.")
        try:
            value = math.exp(nats / count) if size is None else nats / math.log(2) / count
        except OverflowError:
            value = math.inf
        counted = f"perplexity-of-{unit}" if size is None else f"bits-per-{unit}"
        scored = max(costs, key=lambda cost: cost.context)
        figures = {"items": len(texts), unit + "s": count, "context": scored.context, "stride": scored.stride}
        how = [f"{name}:{figure}" for name, figure in figures.items()]
        ends = "counted" if scored.ends else "none"
        return value, "|".join([f"count:{counted}", *how, f"ends:{ends}", f"version:{__version__}"])

    return Metric(measure)


LANGUAGE_MODEL_METRICS = {
    "perplexity": _per("token", None),
    "bits_per_character": _per("character", len),
    "bits_per_byte": _per("byte", lambda text: len(text.encode())),
}
# The masked tokens depend on the text alone.
MASKED_METRICS = {"masked_perplexity": _per("masked-token", None)}
