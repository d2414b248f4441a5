"""The metrics as metrics of the library `evaluate`, each in its own file, which loads without network."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from inspect import getdoc
from typing import Any

import datasets
import evaluate

from vanilla_transformer.evaluation.metrics import check_names, score

_TEXT = datasets.Value("string")
_INPUTS = """
Args:
    predictions: One text per item.
    references: One text or a list of texts per item.
Returns:
    The score in percent under the metric's name, and its `signature`.
"""


class LoadableMetric(evaluate.Metric, ABC):
    """A metric computed as by `vanilla-transformer evaluate`; its configuration is the part after the colon."""

    @property
    @abstractmethod
    def metric(self) -> str:
        """Name of the metric."""

    @property
    def full_name(self) -> str:
        """Name of the metric with its configuration, if any: `paper_bleu:fr`."""
        return self.metric if self.config_name == "default" else f"{self.metric}:{self.config_name}"

    def _info(self) -> evaluate.MetricInfo:
        check_names([self.full_name])
        return evaluate.MetricInfo(
            description=getdoc(type(self)) or "",
            citation="",
            inputs_description=_INPUTS,
            features=[
                datasets.Features({"predictions": _TEXT, "references": datasets.Sequence(_TEXT)}),
                datasets.Features({"predictions": _TEXT, "references": _TEXT}),
            ],
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[Any]) -> dict[str, Any]:
        accepted = [[item] if isinstance(item, str) else item for item in references]
        [result] = score([self.full_name], predictions, accepted)
        return {result.name: result.value, "signature": result.signature}
