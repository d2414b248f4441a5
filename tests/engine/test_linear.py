"""Linear layers of decoding multiply by their weights, packed and live, in each type and for few and many rows."""

import pytest
import torch
from torch import nn

from vanilla_transformer.engine.linear import Weights

# Relative to the largest output.
EXACT, ROUNDED, EIGHT_BITS = 1e-5, 0.02, 0.02


@pytest.mark.processor
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 24), (64, 4099), (512, 520), (2048, 512)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("weights", "tolerance"),
    [
        (Weights(torch.float32), EXACT),
        (Weights(torch.bfloat16), ROUNDED),
        (Weights(torch.float32, packed=True), EXACT),
        (Weights(torch.bfloat16, packed=True), ROUNDED),
        (Weights(torch.float32, packed=True, quantization="int8"), EIGHT_BITS),
    ],
    ids=str,
)
def test_a_linear_layer_multiplies_by_its_weight(inputs, outputs, with_bias, weights, tolerance):
    torch.manual_seed(0)
    linear = nn.Linear(inputs, outputs, bias=with_bias).to(weights.dtype)
    for activation in (None, nn.ReLU(), nn.GELU()):
        multiply = weights.linear(linear, activation)
        for rows in (1, 4, 40):
            x = torch.randn(rows, inputs, dtype=weights.dtype)
            with torch.no_grad():
                found, expected = multiply(x).float(), nn.functional.linear(x.float(), linear.weight.float())
                expected += 0 if linear.bias is None else linear.bias.float()
                wanted = expected if activation is None else activation(expected)
            assert (found - wanted).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize(("of_first", "of_second"), [(True, True), (False, True), (True, False), (False, False)])
def test_several_linear_layers_are_one(of_first, of_second):
    first, second = nn.Linear(8, 4, bias=of_first), nn.Linear(8, 6, bias=of_second)
    x = torch.randn(3, 8)
    with torch.no_grad():
        for packed in (True, False):
            found = Weights(torch.float32, packed).projections(first, second, scaled=0.5)(x)
            torch.testing.assert_close(found, (0.5 * first(x), second(x)))
