"""What training costs: parameters by part, and floating-point operations as in Table 2."""

import numpy as np
import torch

from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

# The parts of a layer, by the beginning of their names in it.
_PARTS = {
    "self_attention.": "self_attention",
    "cross_attention.": "cross_attention",
    "feed_forward.": "feed_forward",
}


def count_parameters(config: VanillaTransformerConfig) -> dict[str, int]:
    """Parameters of each part, and their sum as `total`.

    `embedding` is the matrix that source, target and output share, or the three where they share none; `positions`
    are learned ones. All others belong to the layers of a stack: `encoder_feed_forward`, `decoder_norms` and so on.
    """
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(config)
    counts = {"embedding": 0, "positions": 0}
    for stack, attentions in (("encoder", ("self",)), ("decoder", ("self", "cross"))):
        parts = [*(f"{attention}_attention" for attention in attentions), "feed_forward", "norms"]
        counts.update({f"{stack}_{part}": 0 for part in parts})
    for name, parameter in model.named_parameters():
        counts[_part(name)] += parameter.numel()
    return {**counts, "total": sum(counts.values())}


def _part(name: str) -> str:
    if "positional_encoding" in name:
        return "positions"
    if ".layers." not in name:
        return "embedding"
    stack, _, place = name.removeprefix("model.").partition(".layers.")
    inner = place.partition(".")[2]
    return f"{stack}_{next((part for start, part in _PARTS.items() if inner.startswith(start)), 'norms')}"


def training_flops(config: VanillaTransformerConfig, source_lengths: np.ndarray, target_lengths: np.ndarray) -> float:
    """Table 2: operations in the matrix products of one training pass over sentences of these lengths.

    A product of m×k and k×n counts 2mkn; the backward pass counts twice the forward. Padding does not count.
    """
    assert config.d_k is not None and config.d_v is not None
    s, t = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    query_and_key, value_and_output = (
        config.d_model * config.num_heads * config.d_k,
        (config.d_model * config.num_heads * config.d_v),
    )
    scores = config.num_heads * (config.d_k + config.d_v)
    feed_forward = 2 * config.d_model * config.d_ff
    self_attention = 2 * (query_and_key + value_and_output)
    encoder = s.sum() * (self_attention + feed_forward) + (s * s).sum() * scores
    decoder = t.sum() * (self_attention + feed_forward) + (t * t).sum() * scores
    cross = (s.sum() + t.sum()) * (query_and_key + value_and_output) + (s * t).sum() * scores
    output = t.sum() * config.d_model * config.vocab_size
    forward = 2 * (config.encoder_layers * encoder + config.decoder_layers * (decoder + cross) + output)
    return float(3 * forward)
