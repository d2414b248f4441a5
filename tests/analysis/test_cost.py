import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.analysis.cost import count_parameters, training_flops

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
    """A model that has shapes and no data, with attention whose products torch can count."""
    config._attn_implementation = "eager"
    with torch.device("meta"):
        return VanillaTransformerForConditionalGeneration(config)


@configs
def test_flops_are_those_that_torch_counts(config):
    source, target = (torch.zeros(5, length, dtype=torch.int64, device="meta") for length in (9, 7))
    with FlopCounterMode(display=False) as counter:
        on_meta(config)(input_ids=source, decoder_input_ids=target)
    ours = training_flops(config, np.full(5, 9, dtype=np.int32), np.full(5, 7, dtype=np.int32))
    assert ours == 3 * counter.get_total_flops()


def test_backward_takes_twice_the_products_of_forward():
    config = CONFIGS["own d_k and d_v"]
    config._attn_implementation = "eager"
    model = VanillaTransformerForConditionalGeneration(config)
    source, target = torch.randint(4, 50, (5, 9)), torch.randint(4, 50, (5, 7))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=source, labels=target).loss.backward()
    ours = training_flops(config, np.full(5, 9, dtype=np.int32), np.full(5, 7, dtype=np.int32))
    assert counter.get_total_flops() == ours


def test_flops_of_sentences_add_up():
    config, lengths = CONFIGS["base"], np.array([3, 11, 25])
    each = [training_flops(config, np.array([n]), np.array([n + 1])) for n in lengths]
    assert training_flops(config, lengths, lengths + 1) == pytest.approx(sum(each))


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
