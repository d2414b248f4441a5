"""The loss in parts is the loss over all logits."""

import pytest
import torch
from refusals import refused
from torch.utils._python_dispatch import TorchDispatchMode

from vanilla_transformer.engine.cross_entropy import summed_cross_entropy
from vanilla_transformer.model.modeling_vanilla_transformer import IGNORED_LABEL, label_smoothed_loss

# More logits than are computed at a time in a CPU's cache; MANY rows have more than are ever held.
ROWS, WIDTH, VOCABULARY, MANY = 4001, 16, 300, 120_000


def examples(rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, WIDTH, generator=generator, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, requires_grad=True)
    labels = torch.randint(0, VOCABULARY, (rows,), generator=generator)
    labels[::5] = IGNORED_LABEL
    return hidden, weight, labels


def with_all_logits(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, smoothing: float):
    return torch.nn.functional.cross_entropy(
        torch.nn.functional.linear(hidden, weight).float(), labels, reduction="sum", label_smoothing=smoothing
    )


@pytest.mark.parametrize(("rows", "smoothing"), [(ROWS, 0.0), (MANY, 0.1)])
def test_loss_in_parts_and_its_gradients_equal_those_over_all_logits(rows: int, smoothing: float):
    found = []
    for function in (summed_cross_entropy, with_all_logits):
        hidden, weight, labels = examples(rows)
        total = function(hidden, weight, labels, smoothing)
        (total / rows).backward()
        found.append((total.detach(), hidden.grad, weight.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_a_bias_of_the_output_counts_too():
    hidden, weight, labels = examples()
    bias = torch.linspace(-2, 2, VOCABULARY, requires_grad=True)
    summed_cross_entropy(hidden, weight, labels, 0.1, bias).backward()
    gradients = [tensor.grad.clone() for tensor in (hidden, weight, bias)]
    logits = torch.nn.functional.linear(hidden, weight, bias)
    for tensor in (hidden, weight, bias):
        tensor.grad = None
    torch.nn.functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1).backward()
    torch.testing.assert_close(gradients, [tensor.grad for tensor in (hidden, weight, bias)], rtol=1e-5, atol=1e-5)


def test_a_label_whose_probability_is_nought_in_float32_has_the_right_loss():
    found = []
    for function in (summed_cross_entropy, with_all_logits):
        hidden, weight, labels = examples()
        hidden = (hidden * 30).detach().requires_grad_()
        assert (
            torch.nn.functional.linear(hidden, weight).softmax(-1).gather(1, labels.clamp(min=0)[:, None]) == 0
        ).any()
        total = function(hidden, weight, labels, 0.1)
        total.backward()
        found.append((total.detach(), hidden.grad, weight.grad))
    assert found[0][0].isfinite()
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-4)


def test_under_autocast_the_products_alone_are_rounded():
    found = []
    for function in (summed_cross_entropy, with_all_logits):
        hidden, weight, labels = examples()
        with torch.autocast("cpu", torch.bfloat16):
            total = function(hidden, weight, labels, 0.1)
        total.backward()
        assert total.dtype == hidden.grad.dtype == weight.grad.dtype == torch.float32
        found.append((total.detach(), hidden.grad, weight.grad))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=0)
    torch.testing.assert_close(found[0][1:], found[1][1:], rtol=2e-2, atol=3e-2)


def test_rows_that_do_not_count_have_neither_loss_nor_gradient():
    hidden, weight, _ = examples()
    total = summed_cross_entropy(hidden, weight, torch.full((ROWS,), IGNORED_LABEL), 0.1)
    total.backward()
    assert total.item() == 0
    assert not hidden.grad.any()
    assert not weight.grad.any()


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


@pytest.mark.parametrize("training", [True, False])
def test_loss_without_logits_is_the_one_with_them(tiny_model, training: bool):
    tiny_model.config.label_smoothing = 0.1
    tiny_model.train(training)
    labels = torch.tensor([[6, 3, 12, 2], [9, 2, IGNORED_LABEL, IGNORED_LABEL]])
    inputs = {"input_ids": torch.tensor([[5, 9, 2], [11, 2, 0]]), "labels": labels, "num_items_in_batch": 9}
    found = []
    for skip_logits in (False, True):
        tiny_model.zero_grad()
        outputs = tiny_model(**inputs, skip_logits=skip_logits)
        assert (outputs.logits is None) is skip_logits
        outputs.loss.backward()
        gradients = {name: parameter.grad.clone() for name, parameter in tiny_model.named_parameters()}
        found.append((outputs.loss.detach(), gradients))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_without_gradients_only_the_loss_is_worked_out(tiny_model):
    labels = torch.tensor([[6, 3, 12, 2]])
    with torch.no_grad():
        loss = tiny_model(input_ids=torch.tensor([[5, 9, 2]]), labels=labels, skip_logits=True).loss
    expected = tiny_model(input_ids=torch.tensor([[5, 9, 2]]), labels=labels).loss
    assert not loss.requires_grad
    torch.testing.assert_close(loss, expected.detach())


@pytest.mark.parametrize("skip_logits", [True, False])
@pytest.mark.parametrize("wrong", [-1, -99, 48])
def test_a_label_that_no_type_has_is_refused(tiny_model, wrong, skip_logits):
    labels = torch.tensor([[6, wrong, 2, IGNORED_LABEL]])
    with refused(ValueError, wrong, "47", "-100"):
        tiny_model(input_ids=labels.clamp(3, 40), labels=labels, skip_logits=skip_logits)


def test_rows_of_a_label_that_no_type_has_are_not_taken_for_another_type():
    """Where nobody has looked at the labels before, as on an accelerator."""
    hidden, weight, labels = examples()
    labels[3] = -1
    with pytest.raises((IndexError, RuntimeError)):
        summed_cross_entropy(hidden, weight, labels)


@pytest.mark.parametrize("skip_logits", [True, False])
def test_another_loss_takes_the_place_of_ours(tiny_model, skip_logits):
    """Called as the library's models call theirs."""
    inputs = {"input_ids": torch.tensor([[5, 9, 2]]), "labels": torch.tensor([[6, 3, IGNORED_LABEL]])}
    calls = []

    def twice(logits, labels, vocab_size, num_items_in_batch=None, **kwargs):
        calls.append((tuple(logits.shape), vocab_size, num_items_in_batch, kwargs))
        return 2 * label_smoothed_loss(logits, labels, num_items_in_batch=num_items_in_batch)

    ours = tiny_model(**inputs, num_items_in_batch=7, skip_logits=skip_logits).loss
    tiny_model.loss_function = twice
    found = tiny_model(**inputs, num_items_in_batch=7, skip_logits=skip_logits)
    torch.testing.assert_close(found.loss, 2 * ours)
    assert calls == [((1, 3, 48), 48, 7, {})]
    assert (found.logits is None) == skip_logits


def test_the_loss_of_the_model_is_the_one_that_forward_works_out(tiny_model):
    """So `super().loss_function` is what somebody's own loss may begin with."""
    tiny_model.config.label_smoothing = 0.1
    inputs = {"input_ids": torch.tensor([[5, 9, 2]]), "labels": torch.tensor([[6, 3, IGNORED_LABEL]])}
    for mode in (tiny_model.train(), tiny_model.eval()):
        found = mode(**inputs, num_items_in_batch=3)
        expected = mode.loss_function(found.logits, inputs["labels"], vocab_size=48, num_items_in_batch=3)
        torch.testing.assert_close(found.loss, expected)
