"""The package's metrics as metrics of the library `evaluate`, without network."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from vanilla_transformer.evaluation.metrics import check_names, score

_TEXT = datasets.Value("string")


class LoadableMetric(evaluate.Metric):
    """One of the package's metrics, to be used where a metric of `evaluate` is: `LoadableMetric("paper_bleu:fr")`.

    `compute(predictions=..., references=...)` takes one reference or a list of references per prediction, and returns
    the value in percent under the metric's name, and its `signature`.
    """

    def __init__(self, name: str, **settings: object) -> None:
        check_names([name])
        self._metric = name
        # It is part of a path.
        super().__init__(name.replace(":", "-"), **settings)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=f"{self._metric}, as `vanilla-transformer evaluate` counts it",
            citation="",
            features=[
                datasets.Features({"predictions": _TEXT, "references": datasets.Sequence(_TEXT)}),
                datasets.Features({"predictions": _TEXT, "references": _TEXT}),
            ],
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[Any]) -> dict[str, Any]:
        accepted = [[item] if isinstance(item, str) else item for item in references]
        [result] = score([self._metric], predictions, accepted)
        return {result.name: result.value, "signature": result.signature}
