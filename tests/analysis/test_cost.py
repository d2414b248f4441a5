import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.analysis.cost import training_flops

SMALL = {"vocab_size": 50, "d_model": 32, "d_ff": 48, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 3}
CONFIGS = {
    "own d_k and d_v": VanillaTransformerConfig(**SMALL, d_k=8, d_v=24),
    "learned positions": VanillaTransformerConfig(**SMALL, positional_encoding="learned", max_position_embeddings=16),
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
