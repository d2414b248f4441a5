"""Parameters of a model by part."""

import pytest
import torch

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.extras.inspection.parameters import count_parameters

SMALL = {"vocab_size": 50, "d_model": 32, "d_ff": 48, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 3}
CONFIGS = {
    "own d_k and d_v": VanillaTransformerConfig(**SMALL, d_k=8, d_v=24),
    "learned positions": VanillaTransformerConfig(**SMALL, positional_encoding="learned", max_position_embeddings=16),
    "three embeddings": VanillaTransformerConfig(**SMALL, tie_word_embeddings=False),
    "base": VanillaTransformerConfig.from_preset("base"),
    "big": VanillaTransformerConfig.from_preset("big"),
    "one head": VanillaTransformerConfig.from_preset("table3-A-h1"),
    "narrow keys": VanillaTransformerConfig.from_preset("table3-B-dk16"),
}
configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def on_meta(config: VanillaTransformerConfig) -> VanillaTransformerForConditionalGeneration:
    """A model that has shapes and no data."""
    with torch.device("meta"):
        return VanillaTransformerForConditionalGeneration(config)


@configs
def test_parameters_of_the_parts_are_those_of_the_model(config):
    counts = count_parameters(config)
    assert counts.pop("total") == sum(counts.values()) == on_meta(config).num_parameters()


def test_parts_of_base_are_those_of_the_papers_shapes():
    d, ff, vocabulary, layers = 512, 2048, 37000, 6
    attention, feed_forward, norm = 4 * d * d, 2 * d * ff + ff + d, 2 * d
    assert count_parameters(CONFIGS["base"]) == {
        "embedding": vocabulary * d,
        "positions": 0,
        "encoder_self_attention": layers * attention,
        "encoder_feed_forward": layers * feed_forward,
        "encoder_norms": layers * 2 * norm,
        "decoder_self_attention": layers * attention,
        "decoder_cross_attention": layers * attention,
        "decoder_feed_forward": layers * feed_forward,
        "decoder_norms": layers * 3 * norm,
        "total": 63_045_632,
    }


def test_learned_positions_and_separate_embeddings_are_counted():
    assert count_parameters(CONFIGS["learned positions"])["positions"] == 2 * 16 * 32
    assert count_parameters(CONFIGS["three embeddings"])["embedding"] == 3 * 50 * 32
