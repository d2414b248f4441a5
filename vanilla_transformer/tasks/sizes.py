"""The default sizes of models and runs for each kind of task, by the number of training examples."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class SizePreset:
    """Settings for corpora of up to `rows` examples. On a CPU, the preset small replaces base."""

    rows: float
    vocab_size: int
    preset: str
    dropout: float
    batch_tokens: int
    epochs: int


SIZES = ("d_model", "d_ff", "num_heads", "d_k", "d_v", "encoder_layers", "decoder_layers")
# The settings of a recipe that are fields of a model's configuration.
MODEL_FIELDS = (
    *("vocab_size", *SIZES),
    *("dropout", "attention_dropout", "activation_dropout", "label_smoothing", "positional_encoding"),
)

# Small corpora of pairs use published settings for Multi30k (4+4 layers of width 128, dropout 0.3). The largest
# corpora use the settings of section 5.
SIZES_FOR_PAIRS = (
    SizePreset(20_000, 4_000, "tiny", 0.3, 2_048, 100),
    SizePreset(100_000, 8_000, "tiny", 0.3, 4_096, 60),
    SizePreset(300_000, 8_000, "small", 0.2, 4_096, 40),
    SizePreset(1_000_000, 16_000, "small", 0.1, 8_192, 40),
    SizePreset(math.inf, 37_000, "base", 0.1, 25_000, 100),
)
SIZES_FOR_NEXT_TOKENS = (
    SizePreset(20_000, 4_000, "tiny", 0.3, 2_048, 40),
    SizePreset(100_000, 8_000, "tiny", 0.2, 4_096, 20),
    SizePreset(1_000_000, 16_000, "small", 0.1, 8_192, 10),
    SizePreset(math.inf, 32_000, "base", 0.1, 25_000, 5),
)
SIZES_FOR_MASKED_TOKENS = (
    SizePreset(20_000, 4_000, "tiny", 0.1, 2_048, 100),
    SizePreset(100_000, 8_000, "tiny", 0.1, 4_096, 60),
    SizePreset(1_000_000, 16_000, "small", 0.1, 8_192, 40),
    SizePreset(math.inf, 32_000, "base", 0.1, 25_000, 10),
)
SIZES_FOR_TAGS = (
    SizePreset(20_000, 4_000, "tiny", 0.3, 2_048, 40),
    SizePreset(100_000, 8_000, "tiny", 0.2, 4_096, 20),
    SizePreset(math.inf, 16_000, "small", 0.1, 8_192, 10),
)
# For classified texts, and for tasks that programs register.
SIZES_FOR_LABELS = (
    SizePreset(20_000, 4_000, "tiny", 0.3, 2_048, 40),
    SizePreset(100_000, 8_000, "tiny", 0.3, 4_096, 20),
    SizePreset(1_000_000, 16_000, "small", 0.1, 8_192, 10),
    SizePreset(math.inf, 32_000, "base", 0.1, 25_000, 5),
)
