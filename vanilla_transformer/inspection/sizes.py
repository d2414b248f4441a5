"""Parameters and training cost of a model next to Tables 2 and 3, and the report of `vanilla-transformer info`."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig

from vanilla_transformer.cost import training_flops
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.registration import model_class

# The paper does not publish its vocabulary. With these sizes our models have the numbers of parameters in Table 3,
# except for big. With the 37,000 tokens of section 5.1, no model has the paper's number.
VOCABULARY_SIZES = 41_004, 41_208
# Table 3, the column "params ×10⁶". Table 3 leaves the other rows empty because their numbers equal base's.
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
# Table 2 gives the FLOPs. Section 6.1 computes them as time × devices × sustained FLOP/s of one device, a P100.
TABLE_2 = {
    "base": {"table_2_flops": 3.3e18, "hours": 12, "steps": 100_000},
    "big": {"table_2_flops": 2.3e19, "hours": 3.5 * 24, "steps": 300_000},
}
DEVICES, FLOPS_PER_SECOND = 8, 9.5e12
STEPS = 100_000  # Table 3, the column "train steps", for all models but big.
STEP_TOKENS = 25_000  # Section 5.1: the approximate number of source tokens, and of target tokens, per batch.
SENTENCE_LENGTH = 25  # We count operations for sentences with this number of tokens on each side.
# The part of the model to which a parameter belongs, by the first pattern that matches its name. All other parameters
# are embeddings.
_PARTS = {
    r"positional_encoding": "positions",
    r"^classifier": "classifier",
    r"(encoder|decoder)\.layers\.\d+\.(self_attention|cross_attention|feed_forward)\.": r"\1_\2",
    r"(encoder|decoder)\.layers\.": r"\1_norms",
    r"(encoder|decoder)\.rnn": r"\1_recurrence",
    r"decoder\.(attention|readout)": r"\1",
    r"decoder\.start": "start_of_the_decoder",
}


def count_parameters(config: PreTrainedConfig) -> dict[str, int]:
    """Counts the parameters of each part, such as `encoder_feed_forward`, and their sum as `total`.

    `embedding` counts all embeddings, and a matrix that input and output share only once. `positions` are learned
    positions.
    """
    with torch.device("meta"):
        model = model_class(config)(config)
    counts: dict[str, int] = {}
    only_stack = "encoder.layers" if hasattr(config, "encoder_layers") else "decoder.layers"
    for name, parameter in model.named_parameters():
        name = re.sub(r"^model\.layers", only_stack, name)  # Models with one stack do not name it.
        found = ((re.search(pattern, name), part) for pattern, part in _PARTS.items())
        part = next((match.expand(part) for match, part in found if match), "embedding")
        counts[part] = counts.get(part, 0) + parameter.numel()
    return {**counts, "total": sum(counts.values())}


def training_cost(config: PreTrainedConfig, preset: str | None) -> dict[str, Any]:
    """Returns the FLOPs per token and for the paper's schedule, and the FLOPs in Table 2 if it lists the preset."""
    length = np.array([SENTENCE_LENGTH])
    per_token = training_flops(config, length, length) / SENTENCE_LENGTH
    token = "target_token" if config.is_encoder_decoder else "token"
    cost: dict[str, Any] = {"sentence_length": SENTENCE_LENGTH, f"flops_per_{token}": per_token}
    if isinstance(config, VanillaTransformerConfig):
        published = TABLE_2.get(preset or "", {})
        steps = published.get("steps", STEPS)
        flops = per_token * STEP_TOKENS * steps
        cost |= {"steps": steps, "step_tokens": STEP_TOKENS, "flops": flops, "table_2": None}
        if published:
            exact = published["hours"] * 3600 * DEVICES * FLOPS_PER_SECOND  # Table 2 rounds this number.
            cost["table_2"] = {**published, "devices": DEVICES, "device_flops": exact, "share": flops / exact}
    return cost


def info_page(report: dict[str, Any]) -> Iterator[str]:
    """Yields the lines that `vanilla-transformer info` prints, at most 80 characters wide."""
    yield report["model"]
    yield from _table("SIZES", report["sizes"])
    yield from _table("PARAMETERS", report["parameters"], of_total=True)
    if report["table_3_millions"] is not None:
        yield f"  {'the paper, Table 3':<28}{report['table_3_millions']:>13} million"
        low, high = VOCABULARY_SIZES
        yield from _paragraph(
            "The numbers differ because the paper does not publish its vocabulary and only says that it has about "
            f"37,000 tokens. With {low:,} to {high:,} tokens, our numbers equal those of Table 3, except for big."
        )
    yield from _table("TRAINING", report["training"])
    if published := report["training"].get("table_2"):
        yield f"  {'the paper, Table 2':<28}{_shown(published['table_2_flops']):>13}"
        yield from _paragraph(
            "The numbers differ because we count the operations of the matrix multiplications, forward and backward. "
            f"The paper multiplies the training time by the speed of the devices: {published['hours']:g} hours × "
            f"{published['devices']} P100 × {FLOPS_PER_SECOND / 1e12:g} TFLOP/s = "
            f"{_shown(published['device_flops'])}. Our count is {published['share']:.0%} of this number."
        )


def _table(title: str, values: Mapping[str, Any], *, of_total: bool = False) -> Iterator[str]:
    """Yields a title and one line per number; None and nested dictionaries are left out."""
    yield from ("", title)
    for name, value in values.items():
        if value is not None and not isinstance(value, dict):
            share = f"{value / values['total']:>8.1%}" if of_total else ""
            yield f"  {name:<28}{_shown(value):>13}{share}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2e}" if value >= 1e7 else f"{value:,.4g}"


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, 80, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
