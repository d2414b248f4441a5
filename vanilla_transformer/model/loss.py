"""Section 5.4: cross-entropy with label smoothing, its logits only ever there for a part of the batch.

Shapes in names: N rows, the target positions of a batch · D d_model · V vocabulary.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

IGNORED_LABEL = -100

# Logits that are there together: enough for whole matrix products, few beside a batch's hundreds of millions.
_LOGITS_TOGETHER = {"cpu": 2**25, "cuda": 2**27}
# Logits that a CPU takes from its cache from the first pass over them to the last.
_LOGITS_IN_CACHE = 2**19


def label_smoothed_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int | None = None,
    num_items_in_batch: torch.Tensor | int | None = None,
    label_smoothing: float = 0.0,
    soft_target_ids: torch.Tensor | None = None,
    soft_target_weights: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Section 5.4: mean cross-entropy in nats a label, against 1 - ε_ls on the label and ε_ls / V on every type.

    Args:
        logits: (batch, target length, vocabulary).
        labels: (batch, target length), -100 where they do not count.
        vocab_size: Not needed; the library's losses have it.
        num_items_in_batch: What the sum is divided by; the number of labels that count if None.
        label_smoothing: ε_ls.
        soft_target_ids: Types that share the label's place, (batch, target length, types).
        soft_target_weights: The share of each; what they leave of 1 is the label's, smoothed.
        **kwargs: What `forward` was given besides; not used.
    """
    by_label = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="sum" if soft_target_weights is None else "none",
        label_smoothing=label_smoothing,
    )
    if soft_target_ids is not None and soft_target_weights is not None:
        logs_NV = logits.flatten(0, 1).float().log_softmax(-1)
        weights_NK = soft_target_weights.flatten(0, 1) * (labels.flatten() != IGNORED_LABEL)[:, None]
        by_soft_targets = -(weights_NK * logs_NV.gather(1, soft_target_ids.flatten(0, 1))).sum(-1)
        by_label = ((1 - weights_NK.sum(-1)) * by_label + by_soft_targets).sum()
    return by_label / number_of_items(labels, num_items_in_batch)


def next_token_loss(
    logits: torch.Tensor, labels: torch.Tensor, shift_labels: torch.Tensor | None = None, **kwargs: Any
) -> torch.Tensor:
    """`label_smoothed_loss` of each position's logits on the next position's label, as a decoder-only model has it.

    Args:
        logits: (batch, length, vocabulary).
        labels: (batch, length), the first of which no position predicts.
        shift_labels: (batch, length), in the place of `labels` where they stand at the position that predicts them.
        **kwargs: As of `label_smoothed_loss`.
    """
    logits, labels = (logits[:, :-1], labels[:, 1:]) if shift_labels is None else (logits, shift_labels)
    return label_smoothed_loss(logits, labels, **kwargs)


def classification_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    problem_type: str | None,
    num_items_in_batch: torch.Tensor | int | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Mean loss of a row, or of a row's numbers, as the library's `problem_type` has it.

    Args:
        logits: (rows, labels).
        labels: Classes in any shape, -100 where they do not count; or (rows, labels), 0 and 1 for several labels each,
            or numbers for regression. Without any the loss is zero, for a process that has no row in a step.
        problem_type: `regression`, `single_label_classification` or `multi_label_classification`.
        num_items_in_batch: What the sum is divided by; the labels of this batch if None.
        label_smoothing: ε_ls over the classes of `single_label_classification`.
    """
    labels = labels.to(logits.device)
    if not labels.numel():
        return 0 * logits.sum()
    if problem_type == "single_label_classification":
        return label_smoothed_loss(
            logits.view(-1, logits.shape[-1])[None], labels.view(1, -1), None, num_items_in_batch, label_smoothing
        )
    if labels.numel() != logits.numel():
        raise ValueError(
            f"{problem_type} needs labels of the logits' shape {tuple(logits.shape)}, not {tuple(labels.shape)}."
        )
    labels = labels.view_as(logits).float()
    if problem_type == "regression":
        total = torch.nn.functional.mse_loss(logits.float(), labels, reduction="sum")
    else:
        total = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), labels, reduction="sum")
    return total / (labels.numel() if num_items_in_batch is None else number_of_items(labels, num_items_in_batch))


def number_of_items(labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None) -> torch.Tensor | int:
    """What a summed loss is divided by: the given number, or that of the labels that count."""
    if num_items_in_batch is None:
        return (labels != IGNORED_LABEL).sum().clamp(min=1)
    return num_items_in_batch.to(labels.device) if isinstance(num_items_in_batch, torch.Tensor) else num_items_in_batch


def check_labels(labels: torch.Tensor, vocab_size: int) -> None:
    """Refuses labels that no type has. An accelerator finds them itself, where looking would make it wait.

    Raises:
        ValueError: There is one that is neither a type nor -100.
    """
    if type(labels) is not torch.Tensor or labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    wrong = labels[(labels != IGNORED_LABEL) & ((labels < 0) | (labels >= vocab_size))]
    if len(wrong):
        raise ValueError(
            f"A label is {int(wrong[0])}: labels are ids from 0 to {vocab_size - 1:,}, or {IGNORED_LABEL} where they "
            "do not count."
        )


def summed_cross_entropy(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    labels_N: torch.Tensor,
    label_smoothing: float = 0.0,
    bias_V: torch.Tensor | None = None,
    soft_targets: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Section 5.4: Σ over rows of -Σ q log softmax(logits), q = 1 - ε_ls on the label + ε_ls / V on each type.

    The same as `torch.nn.functional.cross_entropy` over all logits, without holding them: each part's gradient is
    worked out while its logits are there. Under autocast the matrix products are in its dtype, the rest is float32.

    Args:
        hidden_ND: Outputs of the decoder, (rows, d_model).
        weight_VD: The output projection, (vocabulary, d_model).
        labels_N: Types, (rows,); rows with -100 do not count.
        label_smoothing: ε_ls.
        bias_V: Added to the logits, (vocabulary,); the paper has none.
        soft_targets: Types that share a row's label, (rows, types), and the share of each: q is then these shares, and
            what they leave of 1 times the q of the label.

    Returns:
        The sum in nats, a float32 scalar.
    """
    device = hidden_ND.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_ND.dtype
    total: torch.Tensor = _SummedCrossEntropy.apply(
        hidden_ND, weight_VD, bias_V, labels_N, soft_targets, label_smoothing, dtype, torch.is_grad_enabled()
    )
    return total


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: torch.Tensor,
        weight_VD: torch.Tensor,
        bias_V: torch.Tensor | None,
        labels_N: torch.Tensor,
        soft_targets: tuple[torch.Tensor, torch.Tensor] | None,
        label_smoothing: float,
        dtype: torch.dtype,
        with_gradients: bool,
    ) -> torch.Tensor:
        vocabulary, device = weight_VD.shape[0], hidden_ND.device.type
        together = max(1, _LOGITS_TOGETHER.get(device, _LOGITS_TOGETHER["cuda"]) // vocabulary)
        at_once = max(1, _LOGITS_IN_CACHE // vocabulary) if device == "cpu" else together
        hidden_in_dtype_ND, weight_in_dtype_VD = hidden_ND.to(dtype), weight_VD.to(dtype)
        bias_in_dtype_V = None if bias_V is None else bias_V.to(dtype)
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        if with_gradients:
            ctx.hidden_gradient_ND = torch.empty_like(hidden_ND)
            ctx.weight_gradient_VD = torch.zeros_like(weight_VD, dtype=torch.float32)
            ctx.bias_gradient_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=torch.float32)
        for start in range(0, len(labels_N), together):
            rows = slice(start, start + together)
            part_ND, counts_N1 = hidden_in_dtype_ND[rows], (labels_N[rows] != IGNORED_LABEL)[:, None]
            logits_NV = torch.nn.functional.linear(part_ND, weight_in_dtype_VD, bias_in_dtype_V)
            for first in range(0, len(logits_NV), at_once):
                few = slice(first, first + at_once)
                shares = None if soft_targets is None else (soft_targets[0][rows][few], soft_targets[1][rows][few])
                total += _to_gradient_(logits_NV[few], labels_N[rows][few], label_smoothing, shares)
            if with_gradients:
                # Rows that do not count are left out here: the logits have many times more values.
                ctx.hidden_gradient_ND[rows] = (logits_NV @ weight_in_dtype_VD) * counts_N1
                ctx.weight_gradient_VD += logits_NV.mT @ (part_ND * counts_N1)
                if ctx.bias_gradient_V is not None:
                    ctx.bias_gradient_V += (logits_NV * counts_N1).sum(0, dtype=torch.float32)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_gradient_ND = ctx.hidden_gradient_ND * scale.to(ctx.hidden_gradient_ND.dtype)
        bias_gradient_V = None if ctx.bias_gradient_V is None else ctx.bias_gradient_V * scale
        return hidden_gradient_ND, ctx.weight_gradient_VD * scale, bias_gradient_V, None, None, None, None, None


def _to_gradient_(
    logits_NV: torch.Tensor,
    labels_N: torch.Tensor,
    label_smoothing: float,
    soft_targets: tuple[torch.Tensor, torch.Tensor] | None,
) -> torch.Tensor:
    """The summed loss of the rows that count; all logits are overwritten by its gradient, softmax(logits) - q.

    An exponential costs more than all else here, and the softmax has them all: the logarithm of its denominator is
    the largest logit less the logarithm of the largest probability, which is never far from 1.
    """
    on_each = label_smoothing / logits_NV.shape[1]
    labels_N1 = labels_N.masked_fill(labels_N == IGNORED_LABEL, 0)[:, None]
    # A CPU reads bfloat16 slowly, and would do so three times; an accelerator waits for memory, and reads less of it.
    read_NV = logits_NV.float() if logits_NV.device.type == "cpu" else logits_NV
    softmax_NV = read_NV.softmax(dim=-1, dtype=torch.float32)
    log_denominator_N1 = read_NV.amax(-1, keepdim=True).float() - softmax_NV.amax(-1, keepdim=True).log()
    of_labels_N1 = read_NV.gather(1, labels_N1).float()
    sum_N1 = read_NV.sum(-1, keepdim=True, dtype=torch.float32)
    if soft_targets is None:
        loss_N1 = log_denominator_N1 - (1 - label_smoothing) * of_labels_N1 - on_each * sum_N1
        softmax_NV.scatter_add_(1, labels_N1, torch.full_like(of_labels_N1, label_smoothing - 1))
        torch.sub(softmax_NV, on_each, out=logits_NV)
    else:
        ids_NK, shares_NK = soft_targets
        left_N1 = 1 - shares_NK.sum(-1, keepdim=True)
        loss_N1 = log_denominator_N1 - left_N1 * ((1 - label_smoothing) * of_labels_N1 + on_each * sum_N1)
        loss_N1 -= (shares_NK * read_NV.gather(1, ids_NK).float()).sum(-1, keepdim=True)
        softmax_NV.scatter_add_(1, labels_N1, (label_smoothing - 1) * left_N1)
        softmax_NV.scatter_add_(1, ids_NK, -shares_NK)
        torch.sub(softmax_NV, on_each * left_N1, out=logits_NV)
    return loss_N1.masked_fill_((labels_N == IGNORED_LABEL)[:, None], 0.0).sum()


__all__ = ["IGNORED_LABEL", "check_labels", "label_smoothed_loss", "number_of_items", "summed_cross_entropy"]
