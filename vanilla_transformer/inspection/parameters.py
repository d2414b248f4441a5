"""Parameters of a model by part."""

import torch

from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerBaseConfig
from vanilla_transformer.recurrent.configuration_recurrent_encoder_decoder import (
    RecurrentEncoderDecoderConfig,
)
from vanilla_transformer.registration import model_class

OwnConfig = VanillaTransformerBaseConfig | RecurrentEncoderDecoderConfig
# The parts of a layer, by the prefix of their names in it.
_PARTS = {
    "self_attention.": "self_attention",
    "cross_attention.": "cross_attention",
    "feed_forward.": "feed_forward",
}
# The parts of a recurrent model, by the prefix of their names in a stack.
_RECURRENT_PARTS = {
    "encoder.rnn": "encoder_recurrence",
    "decoder.rnn": "decoder_recurrence",
    "decoder.attention": "attention",
    "decoder.start": "start_of_the_decoder",
    "decoder.readout": "readout",
}


def count_parameters(config: OwnConfig) -> dict[str, int]:
    """Counts the parameters of each part, and their sum as `total`; recurrent models have parts of their own.

    `embedding` is the matrix shared by input and output, or all embeddings if they share none; `positions` are learned
    positions; `classifier` is the head of a classifier. All others belong to the layers of a stack:
    `encoder_feed_forward`, `decoder_norms` and so on.
    """
    with torch.device("meta"):
        model = model_class(config)(config)
    if isinstance(config, RecurrentEncoderDecoderConfig):
        parts = dict.fromkeys(["embedding", *_RECURRENT_PARTS.values()], 0)
        for name, parameter in model.named_parameters():
            inner = name.removeprefix("model.")
            part = next((part for start, part in _RECURRENT_PARTS.items() if inner.startswith(start)), "embedding")
            parts[part] += parameter.numel()
        return {**{part: count for part, count in parts.items() if count}, "total": sum(parts.values())}
    counts = {"embedding": 0, "positions": 0}
    for stack in ("encoder", "decoder"):
        for name in ("self_attention", "cross_attention", "feed_forward", "norms"):
            there = hasattr(config, f"{stack}_layers")
            if there and (name != "cross_attention" or (stack == "decoder" and config.is_encoder_decoder)):
                counts[f"{stack}_{name}"] = 0
    for name, parameter in model.named_parameters():
        part = _part(name, "encoder" if hasattr(config, "encoder_layers") else "decoder")
        counts[part] = counts.get(part, 0) + parameter.numel()
    return {**counts, "total": sum(counts.values())}


def training_memory(parameters: int) -> dict[str, int]:
    """Returns the bytes that weights, gradients and Adam's two moments take in a process, without activations."""
    weights = 4 * parameters  # float32, whatever the precision of the matrix products.
    return {"weights": weights, "gradients": weights, "adam": 2 * weights, "total": 4 * weights}


def _part(name: str, only_stack: str) -> str:
    """Returns the part that a parameter belongs to; a model of one stack does not name the stack."""
    if "positional_encoding" in name:
        return "positions"
    if name.startswith("classifier."):
        return "classifier"
    name = name.removeprefix("model.")
    if name.startswith("layers."):
        name = f"{only_stack}.{name}"
    if ".layers." not in name:
        return "embedding"
    stack, _, place = name.partition(".layers.")
    inner = place.partition(".")[2]
    return f"{stack}_{next((part for start, part in _PARTS.items() if inner.startswith(start)), 'norms')}"
