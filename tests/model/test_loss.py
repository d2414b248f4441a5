"""The loss in parts is the loss over all logits."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vanilla_transformer.cross_entropy import summed_cross_entropy
from vanilla_transformer.model.modeling_vanilla_transformer import IGNORED_LABEL

# More logits than are computed at a time in a CPU's cache; MANY rows have more than are ever held.
ROWS, WIDTH, VOCABULARY, MANY = 4001, 16, 300, 120_000


def examples(rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, WIDTH, generator=generator, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, requires_grad=True)
    labels = torch.randint(0, VOCABULARY, (rows,), generator=generator)
    labels[::5] = IGNORED_LABEL
    return hidden, weight, labels


def with_all_logits(hidden, weight, labels, smoothing: float, bias: torch.Tensor) -> torch.Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    return torch.nn.functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)


def both(rows: int = ROWS, smoothing: float = 0.1, scale: float = 1.0) -> list[list[torch.Tensor]]:
    """Loss and gradients of hidden states, weight and bias, in parts and over all logits."""
    found = []
    for function in (summed_cross_entropy, with_all_logits):
        hidden, weight, labels = examples(rows)
        hidden = (hidden * scale).detach().requires_grad_()
        bias = torch.linspace(-2, 2, VOCABULARY, requires_grad=True)
        total = function(hidden, weight, labels, smoothing, bias)
        total.backward()
        found.append([total.detach(), hidden.grad, weight.grad, bias.grad])
    return found


@pytest.mark.parametrize(("rows", "smoothing"), [(ROWS, 0.0), (MANY, 0.1)])
def test_loss_in_parts_and_its_gradients_equal_those_over_all_logits(rows: int, smoothing: float):
    torch.testing.assert_close(*both(rows, smoothing), rtol=1e-5, atol=1e-5 * rows)


def test_a_label_whose_probability_is_nought_in_float32_has_the_right_loss():
    rows = 1000
    hidden, weight, labels = examples(rows)
    probabilities = torch.nn.functional.linear(30 * hidden, weight).softmax(-1)
    assert (probabilities.gather(1, labels.clamp(min=0)[:, None]) == 0).any()
    parts, whole = both(rows, scale=30.0)
    assert parts[0].isfinite()
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-4)


def test_under_autocast_the_products_alone_are_rounded():
    with torch.autocast("cpu", torch.bfloat16):
        parts, whole = both()
    assert {one.dtype for one in parts} == {torch.float32}
    torch.testing.assert_close(parts[0], whole[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(parts[1:], whole[1:], rtol=2e-2, atol=3e-2)


class LargestTensor(TorchDispatchMode):
    """Notes the largest tensor that any operation gives."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numel = max(self.numel, result.numel())
        return result


def test_logits_of_all_rows_never_exist():
    hidden, weight, labels = examples(MANY)
    with LargestTensor() as largest:
        summed_cross_entropy(hidden, weight, labels, 0.1).backward()
    assert largest.numel <= 2**25 < MANY * VOCABULARY


def test_rows_of_a_label_that_no_type_has_are_not_taken_for_another_type():
    """Where nobody has looked at the labels before, as on an accelerator."""
    hidden, weight, labels = examples()
    labels[3] = -1
    with pytest.raises((IndexError, RuntimeError)):
        summed_cross_entropy(hidden, weight, labels)
