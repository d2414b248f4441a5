"""Training cost: floating-point operations, counted for Table 2, and memory."""

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
from vanilla_transformer.recurrent.configuration_recurrent_encoder_decoder import RecurrentEncoderDecoderConfig
from vanilla_transformer.registration import model_class

# The share of the tokens that masked language modeling masks.
MASKED_SHARE = 0.15


def tokens_masked(lengths: np.ndarray) -> np.ndarray:
    """Returns the number of masked tokens per example: 15% of those between `<s>` and `</s>`, but at least one."""
    inner = np.maximum(np.asarray(lengths, dtype=np.int64) - 2, 0)
    return np.minimum(np.maximum(np.rint(MASKED_SHARE * inner).astype(np.int64), 1), inner)


def numbers_kept_per_token(config: PreTrainedConfig) -> int:
    """Estimates how many numbers per token the forward pass keeps for the backward pass."""
    per_layer = 10 * config.d_model + 2 * getattr(config, "d_ff", 0)
    if isinstance(config, VanillaTransformerConfig):
        per_layer *= 2
    layers = getattr(config, "encoder_layers", 0) + getattr(config, "decoder_layers", 0)
    return max(1, layers * per_layer + 4 * config.vocab_size * config.is_encoder_decoder)


def training_flops(config: PreTrainedConfig, *lengths: np.ndarray) -> float:
    """Table 2: counts the operations of one forward and backward pass over examples of these lengths.

    Only matrix multiplications count. A multiplication of an m×k matrix by a k×n matrix takes 2mkn operations, and the
    backward pass takes twice as many as the forward pass. Padding does not count.

    Args:
        lengths: The lengths of the sources and of the targets. Models with one stack read only the last array.

    Returns:
        The number of operations, or 0 if the configuration does not derive from one of this package's.
    """
    s, t = lengths[0].astype(np.float64), lengths[-1].astype(np.float64)
    if isinstance(config, VanillaTransformerBaseConfig):
        return float(6 * _transformer_multiplications(config, s, t))
    if isinstance(config, RecurrentEncoderDecoderConfig):
        return float(6 * _recurrent_multiplications(config, s, t))
    return 0.0


def _transformer_multiplications(config: VanillaTransformerBaseConfig, s: np.ndarray, t: np.ndarray) -> float:
    """Counts the multiplications of scalars in a forward pass."""
    assert config.d_k is not None and config.d_v is not None
    has_two_stacks = isinstance(config, VanillaTransformerConfig)
    s = s if has_two_stacks else t
    query_and_key = config.d_model * config.num_heads * config.d_k
    value_and_output = config.d_model * config.num_heads * config.d_v
    scores = config.num_heads * (config.d_k + config.d_v)
    per_token = 2 * (query_and_key + value_and_output + config.d_model * config.d_ff)
    encoder = s.sum() * per_token + (s * s).sum() * scores
    decoder = t.sum() * per_token + (t * t).sum() * scores
    if has_two_stacks:
        decoder += (s.sum() + t.sum()) * (query_and_key + value_and_output) + (s * t).sum() * scores
    kind = model_class(config)
    outputs = config.vocab_size if issubclass(kind, LanguageModelHead) else config.num_labels or 1
    projected = t.sum()
    if kind is VanillaTransformerEncoderForSequenceClassification:
        projected = len(t)
    elif kind is VanillaTransformerEncoderForMaskedLM:  # Training projects only the masked tokens.
        projected = tokens_masked(t).sum()
    encoder *= getattr(config, "encoder_layers", 0)
    decoder *= getattr(config, "decoder_layers", 0)
    return encoder + decoder + projected * config.d_model * outputs


def _recurrent_multiplications(config: RecurrentEncoderDecoderConfig, s: np.ndarray, t: np.ndarray) -> float:
    """Counts the multiplications of scalars in a forward pass."""
    square, gates = config.d_model**2, {"lstm": 4, "gru": 3}[config.cell]
    attends = config.attention != "none"
    feeds = config.attention == "bahdanau" or (attends and config.input_feeding)
    # Two directions of half the width take three quarters of the multiplications of one direction of full width.
    encoder = config.num_layers * gates * square * (1.5 if config.bidirectional else 2)
    decoder = (2 * config.num_layers + feeds) * gates * square
    count = s.sum() * encoder + t.sum() * (decoder + config.d_model * config.vocab_size)
    if attends:
        additive = config.attention in ("bahdanau", "luong-concat")
        keys = 0 if config.attention == "luong-dot" else square
        readout = 6 * square if config.attention == "bahdanau" else 2 * square
        count += s.sum() * keys + t.sum() * (readout + additive * square) + (s * t).sum() * 2 * config.d_model
        count += t.sum() * square * (config.attention_window is not None)
    return count
