"""Training cost of recurrent models: floating-point operations, counted as in Table 2."""

import numpy as np

from vanilla_transformer.recurrent.configuration_recurrent_encoder_decoder import RecurrentEncoderDecoderConfig


def training_flops(config: RecurrentEncoderDecoderConfig, *lengths: np.ndarray) -> float:
    """Counts the operations in the matrix products of a training pass over rows of these lengths.

    Args:
        lengths: Lengths of the sources and of the targets.
    """
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
