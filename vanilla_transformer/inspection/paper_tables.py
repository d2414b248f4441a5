"""Tables 2 and 3: the paper's figures for the size and training of its models."""

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


# Table 2: the FLOPs; section 6.1: they are time × devices × the sustained FLOP/s of one device, here 8 P100.
TABLE_2 = {
    "base": {"table_2_flops": 3.3e18, "hours": 12, "steps": STEPS},
    "big": {"table_2_flops": 2.3e19, "hours": 3.5 * 24, "steps": 300_000},
}
DEVICES, FLOPS_PER_SECOND = 8, 9.5e12


def training_cost(config: OwnConfig, preset: str | None) -> dict[str, object]:
    """Returns FLOPs per target token and for the paper's schedule, and those of a preset in Table 2."""
    length = np.array([SENTENCE_LENGTH])
    per_token = training_flops(config, length, length) / SENTENCE_LENGTH
    token = "target_token" if config.is_encoder_decoder else "token"
    figures: dict[str, object] = {"sentence_length": SENTENCE_LENGTH, f"flops_per_{token}": per_token}
    if not isinstance(config, VanillaTransformerConfig):
        return figures
    published = TABLE_2.get(preset or "", {})
    steps = published.get("steps", STEPS)
    figures |= {"steps": steps, "step_tokens": STEP_TOKENS, "flops": per_token * STEP_TOKENS * steps, "table_2": None}
    if published:
        flops = published["hours"] * 3600 * DEVICES * FLOPS_PER_SECOND  # Given with two digits in Table 2.
        share = per_token * STEP_TOKENS * steps / flops
        figures["table_2"] = {**published, "devices": DEVICES, "device_flops": flops, "share": share}
    return figures
