"""Training cost: floating-point operations as in Table 2."""

import numpy as np

from vanilla_transformer.model.configuration_recurrent_encoder_decoder import RecurrentEncoderDecoderConfig
from vanilla_transformer.model.configuration_vanilla_transformer import (
    VanillaTransformerBaseConfig,
    VanillaTransformerConfig,
)
from vanilla_transformer.model.heads import LanguageModelHead
from vanilla_transformer.model.modeling_vanilla_transformer_encoder import (
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerEncoderForSequenceClassification,
)
from vanilla_transformer.registration import model_class

# Share of a text's tokens that masked language models mask.
MASKED_SHARE = 0.15
OwnConfig = VanillaTransformerBaseConfig | RecurrentEncoderDecoderConfig


def tokens_masked(lengths: np.ndarray) -> np.ndarray:
    """Returns the tokens masked per row: round(0.15 n) of the n between `<s>` and `</s>`, but at least one."""
    inner = np.maximum(np.asarray(lengths, dtype=np.int64) - 2, 0)
    return np.minimum(np.maximum(np.rint(MASKED_SHARE * inner).astype(np.int64), 1), inner)


def training_flops(config: OwnConfig, *lengths: np.ndarray) -> float:
    """Table 2: counts the operations in the matrix products of a training pass over rows of these lengths.

    A product of m×k and k×n counts 2mkn; the backward pass counts twice the forward. Padding does not count. A masked
    language model projects only the masked tokens, as in training.

    Args:
        lengths: Lengths of the sources and of the targets; a model of one stack reads the last ones.
    """
    if isinstance(config, RecurrentEncoderDecoderConfig):
        return _recurrent_training_flops(config, *lengths)
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


def _recurrent_training_flops(config: RecurrentEncoderDecoderConfig, *lengths: np.ndarray) -> float:
    s, t = (length.astype(np.float64) for length in lengths)
    square, gates = config.d_model**2, {"lstm": 4, "gru": 3}[config.cell]
    attends = config.attention != "none"
    feeds = config.attention == "bahdanau" or (attends and config.input_feeding)
    # Two directions of half the width take three quarters of the multiplications of one of full width.
    encoder = config.num_layers * gates * square * (1.5 if config.bidirectional else 2)
    decoder = (2 * config.num_layers + feeds) * gates * square
    products = s.sum() * encoder + t.sum() * (decoder + config.d_model * config.vocab_size)
    if attends:
        additive = config.attention in ("bahdanau", "luong-concat")
        keys = 0 if config.attention == "luong-dot" else square
        readout = 6 * square if config.attention == "bahdanau" else 2 * square
        products += s.sum() * keys + t.sum() * (readout + additive * square) + (s * t).sum() * 2 * config.d_model
        products += t.sum() * square * (config.attention_window is not None)
    return float(6 * products)
