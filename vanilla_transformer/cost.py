"""Training cost: floating-point operations as in Table 2, and memory."""

from functools import singledispatch
from importlib.util import find_spec

import numpy as np
from transformers import PreTrainedConfig

from vanilla_transformer.model.configuration_vanilla_transformer import (
    VanillaTransformerBaseConfig,
    VanillaTransformerConfig,
)
from vanilla_transformer.model.modeling_vanilla_transformer import LanguageModelHead
from vanilla_transformer.model.modeling_vanilla_transformer_encoder import (
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerEncoderForSequenceClassification,
)
from vanilla_transformer.registration import model_class

# Share of a text's tokens that masked language models mask.
MASKED_SHARE = 0.15


def tokens_masked(lengths: np.ndarray) -> np.ndarray:
    """Returns the tokens masked per row: round(0.15 n) of the n between `<s>` and `</s>`, but at least one."""
    inner = np.maximum(np.asarray(lengths, dtype=np.int64) - 2, 0)
    return np.minimum(np.maximum(np.rint(MASKED_SHARE * inner).astype(np.int64), 1), inner)


def numbers_kept_per_token(config: PreTrainedConfig) -> int:
    """Returns roughly how many numbers per token the forward pass keeps for the backward pass."""
    stacks = [getattr(config, f"{stack}_layers", getattr(config, "num_layers", 0)) for stack in ("encoder", "decoder")]
    per_layer = 10 * config.d_model + 2 * getattr(config, "d_ff", 0)
    if isinstance(config, VanillaTransformerConfig):
        per_layer *= 2
    return max(1, sum(stacks) * per_layer + 4 * config.vocab_size * config.is_encoder_decoder)


@singledispatch
def training_flops(config: PreTrainedConfig, *lengths: np.ndarray) -> float:
    """Table 2: counts the operations in the matrix products of a training pass over rows of these lengths.

    0 where they are unknown: for the configuration of another family, `training_flops.register` takes a function.
    """
    return 0.0


@training_flops.register
def _of_transformer(config: VanillaTransformerBaseConfig, *lengths: np.ndarray) -> float:
    """Counts the operations of a Transformer.

    A product of m×k and k×n counts 2mkn; the backward pass counts twice the forward. Padding does not count. A masked
    language model projects only the masked tokens, as in training.

    Args:
        lengths: Lengths of the sources and of the targets; a model of one stack reads the last ones.
    """
    assert config.d_k is not None and config.d_v is not None
    s, t = lengths[0].astype(np.float64), lengths[-1].astype(np.float64)
    s = s if isinstance(config, VanillaTransformerConfig) else t
    query_and_key = config.d_model * config.num_heads * config.d_k
    value_and_output = config.d_model * config.num_heads * config.d_v
    scores = config.num_heads * (config.d_k + config.d_v)
    feed_forward = 2 * config.d_model * config.d_ff
    self_attention = 2 * (query_and_key + value_and_output)
    encoder = s.sum() * (self_attention + feed_forward) + (s * s).sum() * scores
    decoder = t.sum() * (self_attention + feed_forward) + (t * t).sum() * scores
    if isinstance(config, VanillaTransformerConfig):
        decoder += (s.sum() + t.sum()) * (query_and_key + value_and_output) + (s * t).sum() * scores
    kind = model_class(config)
    outputs = config.vocab_size if issubclass(kind, LanguageModelHead) else config.num_labels or 1
    places = t.sum()
    if kind is VanillaTransformerEncoderForSequenceClassification:
        places = len(t)
    elif kind is VanillaTransformerEncoderForMaskedLM:
        places = tokens_masked(lengths[-1]).sum()
    output = float(places) * config.d_model * outputs
    layers = [getattr(config, f"{stack}_layers", 0) for stack in ("encoder", "decoder")]
    return float(6 * (layers[0] * encoder + layers[1] * decoder + output))


if find_spec("vanilla_transformer.recurrent"):
    from vanilla_transformer.recurrent import cost
    from vanilla_transformer.recurrent.configuration_recurrent_encoder_decoder import RecurrentEncoderDecoderConfig

    training_flops.register(RecurrentEncoderDecoderConfig, cost.training_flops)
