"""Tables 2 and 3: the paper's figures for the size and training of its models, and the vocabulary sizes they imply."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vanilla_transformer.inspection.parameters import count_parameters
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig

# Table 3, the column "params ×10⁶"; rows that leave it open equal base and are not listed.
MILLIONS_OF_PARAMETERS = {
    "base": 65,
    "table3-B-dk16": 58,
    "table3-B-dk32": 60,
    "table3-C-n2": 36,
    "table3-C-n4": 50,
    "table3-C-n8": 80,
    "table3-C-d256": 28,
    "table3-C-d1024": 168,
    "table3-C-dff1024": 53,
    "table3-C-dff4096": 90,
    "big": 213,
}
STEP_TOKENS = 25_000  # Section 5.1: about as many source and as many target tokens per batch.


@dataclass(frozen=True)
class DeviceTime:
    """Section 6.1: the FLOPs of Table 2 are time × devices × the sustained FLOP/s of one device."""

    table_2_flops: float
    hours: float
    devices: int = 8
    flops_per_second: float = 9.5e12  # The paper's figure for a P100 in single precision.

    @property
    def flops(self) -> float:
        """The product, given with two digits in Table 2."""
        return self.hours * 3600 * self.devices * self.flops_per_second


TABLE_2 = {"base": DeviceTime(3.3e18, hours=12), "big": DeviceTime(2.3e19, hours=3.5 * 24)}


def is_in_paper(preset: str) -> bool:
    """Tells whether the preset is one of the paper's models."""
    return preset in ("base", "big") or preset.startswith("table3-")


def table_2_model(config: VanillaTransformerConfig) -> str | None:
    """Returns `base` or `big` if a model has that architecture; vocabulary and dropout may differ, as for en-fr."""
    shape = "d_model", "d_ff", "num_heads", "d_k", "d_v", "encoder_layers", "decoder_layers", "positional_encoding"
    for preset in TABLE_2:
        published = VanillaTransformerConfig.from_preset(preset)
        if all(getattr(config, size) == getattr(published, size) for size in shape):
            return preset
    return None


def training_steps(preset: str | None) -> int:
    """Returns the column "train steps" of Table 3; base's for models that are not in it."""
    return 300_000 if preset == "big" else 100_000


@dataclass(frozen=True)
class Row:
    """A row of Table 3 with a number of parameters, and ours."""

    preset: str
    millions: int
    parameters: int
    vocabularies: tuple[int, int]
    """The smallest and largest vocabulary for which the model has the row's number, rounded to millions."""


def table_3(vocab_size: int) -> list[Row]:
    """Returns the rows of Table 3 with a number of parameters, and ours at this vocabulary size."""
    rows = []
    for preset, millions in MILLIONS_OF_PARAMETERS.items():
        config = VanillaTransformerConfig.from_preset(preset, vocab_size=vocab_size)
        parameters = count_parameters(config)
        span = _vocabularies(millions, parameters["total"] - parameters["embedding"], config.d_model)
        rows.append(Row(preset, millions, parameters["total"], span))
    return rows


def _vocabularies(millions: int, without_embedding: int, d_model: int) -> tuple[int, int]:
    least, below = (round((millions + half) * 1_000_000) - without_embedding for half in (-0.5, 0.5))
    return math.ceil(least / d_model), math.ceil(below / d_model) - 1


def most_common_vocabularies(rows: Sequence[Row]) -> tuple[tuple[int, int], list[str]]:
    """Returns the range of vocabulary sizes that explains the most rows, and the presets of the unexplained rows."""
    spans: Mapping[str, tuple[int, int]] = {row.preset: row.vocabularies for row in rows}
    agreeing = max(
        ([preset for preset, (low, high) in spans.items() if low <= start <= high] for start, _ in spans.values()),
        key=len,
    )
    common = max(spans[preset][0] for preset in agreeing), min(spans[preset][1] for preset in agreeing)
    return common, [preset for preset in spans if preset not in agreeing]
