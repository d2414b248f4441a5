"""The paper's equations on numbers that can be worked out by hand, and its sizes."""

import math

import pytest
import torch
from torch import nn

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.model import modeling_vanilla_transformer as modeling


def matrix(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def test_equation_1_on_three_words():
    q, k = matrix([[1, 0], [0, 1], [1, 1]]), matrix([[1, 1], [0, 1], [1, 0]])
    v = matrix([[0, 2], [1, 1], [2, 0]])
    output, weights = modeling.scaled_dot_product_attention(
        nn.Identity(), q[None, None], k[None, None], v[None, None], None
    )
    expected = matrix([[1.00, 1.00], [0.80, 1.20], [0.74, 1.26]])
    torch.testing.assert_close(output[0, :, 0], expected, atol=5e-3, rtol=0)
    torch.testing.assert_close(weights[0, 0, 0], torch.tensor([0.40, 0.20, 0.40]), atol=5e-3, rtol=0)


def test_equation_2_on_three_positions():
    config = VanillaTransformerConfig(vocab_size=8, d_model=2, d_ff=2, num_heads=1)
    feed_forward = modeling.PositionwiseFeedForward(config)
    with torch.no_grad():
        feed_forward.w_1.weight.copy_(matrix([[1, 1], [0, 1]]).T)
        feed_forward.w_1.bias.copy_(torch.tensor([0.0, 1.0]))
        feed_forward.w_2.weight.copy_(matrix([[1, 0], [2, 1]]).T)
        feed_forward.w_2.bias.copy_(torch.tensor([1.0, -1.0]))
    assert feed_forward(matrix([[1, 0], [0, 1], [1, 1]])).tolist() == [[6, 1], [5, 1], [8, 2]]


@pytest.mark.parametrize("position", [0, 17, 5000])
def test_positional_encoding_is_the_papers_formula(position: int):
    d_model = 16
    encoding = modeling.PositionalEncoding(VanillaTransformerConfig(vocab_size=8, d_model=d_model, num_heads=1))
    expected = []
    for i in range(d_model // 2):
        angle = position / 10000 ** (2 * i / d_model)
        expected += [math.sin(angle), math.cos(angle)]
    # float32 holds an angle of 5000 to about 5e-4.
    torch.testing.assert_close(encoding(1, start=position)[0], torch.tensor(expected), atol=1e-3, rtol=0)


def test_glorot_and_embedding_initialisation():
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=4000, d_model=64, d_ff=128))
    embedding = model.get_input_embeddings().weight
    assert embedding.std().item() == pytest.approx(64**-0.5, rel=0.02)
    w_1 = model.model.encoder.layers[0].feed_forward.w_1
    bound = math.sqrt(6 / (64 + 128))
    assert bound * 0.98 < w_1.weight.abs().max().item() <= bound
    assert not w_1.bias.any()


def test_base_with_the_papers_vocabulary_has_63_million_parameters():
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig())
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(63.1e6, rel=0.002)
