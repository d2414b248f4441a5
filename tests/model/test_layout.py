"""Products of weights that are laid out: those of the weights, in each type and for few and many rows."""

import pytest
import torch
from torch import nn

from vanilla_transformer.model.layout_vanilla_transformer import MANY_OUTPUTS, MANY_ROWS, Layout

# Relative to the largest output.
EXACT, ROUNDED, EIGHT_BITS = 1e-5, 0.02, 0.02


@pytest.mark.processor
@pytest.mark.parametrize("outputs", [24, MANY_OUTPUTS + 3])
@pytest.mark.parametrize("rows", [1, MANY_ROWS - 1, MANY_ROWS, MANY_ROWS + 5])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("dtype", "quantization", "tolerance"),
    [(torch.float32, None, EXACT), (torch.bfloat16, None, ROUNDED), (torch.float32, "int8", EIGHT_BITS)],
)
def test_a_product_is_that_of_the_weight(outputs, rows, with_bias, dtype, quantization, tolerance):
    torch.manual_seed(0)
    linear, x = nn.Linear(64, outputs, bias=with_bias), torch.randn(rows, 64)
    layout = Layout(dtype, quantization)
    with torch.no_grad():
        expected = linear(x)
        for activation in (None, nn.ReLU(), nn.GELU()):
            product = layout.product(linear.weight, linear.bias, activation)
            wanted = expected if activation is None else activation(expected)
            difference = (product(x.to(layout.activations)).float() - wanted).abs().max()
            assert difference <= tolerance * expected.abs().max()


def test_several_weights_make_one_product():
    first, second = nn.Linear(8, 4), nn.Linear(8, 6)
    x = torch.randn(3, 8)
    with torch.no_grad():
        found = Layout(torch.float32, None).joined(first, second, scaled=0.5)(x)
        torch.testing.assert_close(found, torch.cat((0.5 * first(x), second(x)), 1))
