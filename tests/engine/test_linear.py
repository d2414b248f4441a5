"""Packed linear layers multiply by their weights, in each type and for few and many rows."""

import pytest
import torch
from torch import nn

from vanilla_transformer.engine import linear as linear_module
from vanilla_transformer.engine.linear import PackedWeights, Weights

# Relative to the largest output.
EXACT, ROUNDED, EIGHT_BITS = 1e-5, 0.02, 0.02


@pytest.mark.processor
@pytest.mark.parametrize("outputs", [24, 4099])
@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("dtype", "quantization", "tolerance"),
    [(torch.float32, None, EXACT), (torch.bfloat16, None, ROUNDED), (torch.float32, "int8", EIGHT_BITS)],
)
def test_a_packed_linear_multiplies_by_its_weight(outputs, rows, with_bias, dtype, quantization, tolerance):
    torch.manual_seed(0)
    linear, x = nn.Linear(64, outputs, bias=with_bias), torch.randn(rows, 64)
    pack = PackedWeights(dtype, quantization)
    with torch.no_grad():
        expected = linear(x)
        for activation in (None, nn.ReLU(), nn.GELU()):
            packed = pack.linear(linear, activation)
            wanted = expected if activation is None else activation(expected)
            difference = (packed(x.to(pack.activations)).float() - wanted).abs().max()
            assert difference <= tolerance * expected.abs().max()


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "plain"), [(4, 128, 128, True), (128, 128, 128, False), (4, 512, 1024, False)]
)
def test_shapes_decide_whether_weights_are_multiplied_as_they_are(monkeypatch, rows, inputs, outputs, plain):
    if not linear_module._can_pack(torch.device("cpu"), torch.float32):
        pytest.skip("torch was built without oneDNN")
    multiplied = []
    linear = torch.nn.functional.linear
    monkeypatch.setattr(linear_module.F, "linear", lambda *args: multiplied.append(1) or linear(*args))
    for weights in (Weights(torch.float32), PackedWeights(torch.float32)):
        multiplied.clear()
        weights.linear(nn.Linear(inputs, outputs))(torch.randn(rows, inputs))
        assert bool(multiplied) == plain


@pytest.mark.processor
@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 48), (512, 520), (2048, 512)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, EXACT), (torch.bfloat16, ROUNDED)])
def test_a_live_linear_multiplies_by_its_weight(rows, inputs, outputs, dtype, tolerance):
    torch.manual_seed(0)
    for with_bias in (True, False):
        linear, x = nn.Linear(inputs, outputs, bias=with_bias).to(dtype), torch.randn(rows, inputs, dtype=dtype)
        with torch.no_grad():
            expected = linear.float()(x.float())
            linear.to(dtype)
            for activation in (None, nn.ReLU(), nn.GELU()):
                wanted = expected if activation is None else activation(expected)
                found = Weights(dtype).linear(linear, activation)(x).float()
                assert (found - wanted).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize(("of_first", "of_second"), [(True, True), (False, True), (True, False), (False, False)])
def test_several_linear_layers_are_one(of_first, of_second):
    first, second = nn.Linear(8, 4, bias=of_first), nn.Linear(8, 6, bias=of_second)
    x = torch.randn(3, 8)
    with torch.no_grad():
        for weights in (PackedWeights(torch.float32), Weights(torch.float32)):
            found = weights.projections(first, second, scaled=0.5)(x)
            torch.testing.assert_close(found, (0.5 * first(x), second(x)))
