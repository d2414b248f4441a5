"""Linear layers of decoding multiply by their weights, in each type and for few and many rows."""

import pytest
import torch
from torch import nn

from vanilla_transformer.engine.linear import Weights

# Relative to the largest output.
EXACT, ROUNDED = 1e-5, 0.02


@pytest.mark.processor
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 24), (256, 512), (64, 4099), (512, 520), (2048, 512)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("weights", "tolerance"),
    [
        (Weights(torch.float32), EXACT),
        (Weights(torch.bfloat16), ROUNDED),
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
            if activation is None:
                residual = torch.randn(rows, outputs, dtype=weights.dtype)
                with torch.no_grad():
                    added = weights.residual_linear(linear)(x, residual.clone()).float() - residual.float()
                assert (added - expected).abs().max() <= tolerance * (expected + residual).abs().max()
