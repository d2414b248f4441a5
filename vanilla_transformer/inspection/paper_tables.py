"""Tables 2 and 3: the paper's figures for the size and training of its models."""

from dataclasses import asdict, dataclass

import numpy as np

from vanilla_transformer.cost import training_flops
from vanilla_transformer.inspection.parameters import OwnConfig
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig

# The paper does not publish its vocabulary. With these sizes all numbers of parameters in Table 3 but big's are ours,
# with the 37,000 entries of section 5.1 none.
VOCABULARY_SIZES = 41_004, 41_208
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
SENTENCE_LENGTH = 25  # Tokens of each side for which operations are counted.
STEPS = 100_000  # Table 3, the column "train steps", for all models but big.


@dataclass(frozen=True)
class DeviceTime:
    """Section 6.1: the FLOPs of Table 2 are time × devices × the sustained FLOP/s of one device."""

    table_2_flops: float
    hours: float
    steps: int = STEPS
    devices: int = 8
    flops_per_second: float = 9.5e12  # The paper's figure for a P100 in single precision.

    @property
    def device_flops(self) -> float:
        """The product, given with two digits in Table 2."""
        return self.hours * 3600 * self.devices * self.flops_per_second


TABLE_2 = {"base": DeviceTime(3.3e18, hours=12), "big": DeviceTime(2.3e19, hours=3.5 * 24, steps=300_000)}


def training_cost(config: OwnConfig, preset: str | None) -> dict[str, object]:
    """Returns FLOPs per target token and for the paper's schedule, and those of a preset in Table 2."""
    length = np.array([SENTENCE_LENGTH])
    per_token = training_flops(config, length, length) / SENTENCE_LENGTH
    token = "target_token" if config.is_encoder_decoder else "token"
    figures: dict[str, object] = {"sentence_length": SENTENCE_LENGTH, f"flops_per_{token}": per_token}
    if not isinstance(config, VanillaTransformerConfig):
        return figures
    published = TABLE_2.get(preset or "")
    steps = published.steps if published else STEPS
    flops = per_token * STEP_TOKENS * steps
    table_2 = published and {
        **asdict(published),
        "device_flops": published.device_flops,
        "share": flops / published.device_flops,
    }
    return {**figures, "steps": steps, "step_tokens": STEP_TOKENS, "flops": flops, "table_2": table_2}
