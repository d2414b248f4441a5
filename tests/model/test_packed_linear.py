"""Packed linear layers multiply by their weights, in each type and for few and many rows."""

import pytest
import torch
from torch import nn

from vanilla_transformer.model import packed_weights
from vanilla_transformer.model.packed_weights import FEW_ROWS, MANY_OUTPUTS, MANY_ROWS, PackedWeights, checksum

# Relative to the largest output.
EXACT, ROUNDED, EIGHT_BITS = 1e-5, 0.02, 0.02


@pytest.mark.processor
@pytest.mark.parametrize("unpacked", [True, False])
@pytest.mark.parametrize("outputs", [24, MANY_OUTPUTS + 3])
@pytest.mark.parametrize("rows", [1, 2, FEW_ROWS, MANY_ROWS - 1, MANY_ROWS, MANY_ROWS + 5])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("dtype", "quantization", "tolerance"),
    [(torch.float32, None, EXACT), (torch.bfloat16, None, ROUNDED), (torch.float32, "int8", EIGHT_BITS)],
)
def test_a_packed_linear_multiplies_by_its_weight(
    monkeypatch, unpacked, outputs, rows, with_bias, dtype, quantization, tolerance
):
    monkeypatch.setattr(packed_weights, "multiplies_few_rows_unpacked", lambda: unpacked)
    torch.manual_seed(0)
    linear, x = nn.Linear(64, outputs, bias=with_bias), torch.randn(rows, 64)
    pack = PackedWeights(dtype, quantization, few_rows=True)
    with torch.no_grad():
        expected = linear(x)
        for activation in (None, nn.ReLU(), nn.GELU()):
            packed = pack.linear(linear.weight, linear.bias, activation)
            wanted = expected if activation is None else activation(expected)
            difference = (packed(x.to(pack.activations)).float() - wanted).abs().max()
            assert difference <= tolerance * expected.abs().max()


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "plain"), [(4, 128, 128, True), (128, 128, 128, False), (4, 512, 1024, False)]
)
def test_shapes_decide_whether_weights_are_multiplied_as_they_are(monkeypatch, rows, inputs, outputs, plain):
    if not packed_weights._can_pack(torch.float32):
        pytest.skip("torch was built without oneDNN")
    multiplied = []
    linear = torch.nn.functional.linear
    monkeypatch.setattr(packed_weights.F, "linear", lambda *args: multiplied.append(1) or linear(*args))
    PackedWeights(torch.float32, None).linear(torch.randn(outputs, inputs), None)(torch.randn(rows, inputs))
    assert bool(multiplied) == plain


def test_several_linear_layers_are_one():
    first, second = nn.Linear(8, 4), nn.Linear(8, 6)
    x = torch.randn(3, 8)
    with torch.no_grad():
        found = PackedWeights(torch.float32, None).fused_linear(first, second, scaled=0.5)(x)
        torch.testing.assert_close(found, torch.cat((0.5 * first(x), second(x)), 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 5), (6, 64), (300, 512), (33,), (256,)])
def test_a_checksum_differs_once_a_number_or_the_order_differs(shape, dtype):
    torch.manual_seed(0)
    weight = torch.randn(shape).to(dtype)
    before = checksum([weight])
    assert torch.equal(checksum([weight.clone()]), before)
    flat = weight.view(-1)
    for place in {0, 1, len(flat) // 2, len(flat) - 1}:
        changed = weight.clone()
        changed.view(-1)[place] += 0.01
        assert not torch.equal(checksum([changed]), before)
        for other in {2, 3, 4, len(flat) // 3, len(flat) - 2} - {place}:
            swapped = weight.clone()
            swapped.view(-1)[[place, other]] = flat[[other, place]]
            assert not torch.equal(checksum([swapped]), before)
    for order in (weight.flip(0), weight.flip(-1), weight.roll(1, 0), weight.roll(1, -1), -weight):
        assert not torch.equal(checksum([order]), before)
    # Rows that do not begin at a multiple of 8 bytes are read otherwise.
    assert not torch.equal(checksum([flat[1:]]), checksum([flat[1:].flip(0)]))
