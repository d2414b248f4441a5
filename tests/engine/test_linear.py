"""Linear layers of decoding multiply by their weights, in each type and for few and many rows."""

import pytest
import torch
from torch import nn

from vanilla_transformer.engine.linear import linear, residual_linear

# Relative to the largest output.
EXACT, ROUNDED = 1e-5, 0.02


@pytest.mark.processor
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 24), (256, 512), (64, 4099), (512, 520), (2048, 512)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, EXACT), (torch.bfloat16, ROUNDED)],
    ids=str,
)
def test_a_linear_layer_multiplies_by_its_weight(inputs, outputs, with_bias, dtype, tolerance):
    torch.manual_seed(0)
    module = nn.Linear(inputs, outputs, bias=with_bias).to(dtype)
    for activation in (None, nn.ReLU(), nn.GELU()):
        multiply = linear(module, dtype, activation)
        for rows in (1, 4, 40):
            x = torch.randn(rows, inputs, dtype=dtype)
            with torch.no_grad():
                found, expected = multiply(x).float(), nn.functional.linear(x.float(), module.weight.float())
                expected += 0 if module.bias is None else module.bias.float()
                wanted = expected if activation is None else activation(expected)
            assert (found - wanted).abs().max() <= tolerance * expected.abs().max()
            if activation is None:
                residual = torch.randn(rows, outputs, dtype=dtype)
                with torch.no_grad():
                    added = residual_linear(module, dtype)(x, residual.clone()).float() - residual.float()
                assert (added - expected).abs().max() <= tolerance * (expected + residual).abs().max()
