"""The metrics as metrics of the library `evaluate`, each in a file of its own that it loads without network."""

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
    predictions: Texts, one for each item.
    references: For each item a list of texts, of which there may be several, or one text.
Returns:
    The score in percent under the metric's name, and under `signature` how it was counted.
"""


class LoadableMetric(evaluate.Metric, ABC):
    """A metric by the same code as `vanilla-transformer evaluate`; a configuration is what stands behind its colon."""

    @property
    @abstractmethod
    def metric(self) -> str:
        """Name of the metric."""

    @property
    def full_name(self) -> str:
        """Name of the metric with its configuration, if it was loaded with one: `paper_bleu:fr`."""
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
