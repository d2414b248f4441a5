"""Section 5.4: cross-entropy with label smoothing."""

from typing import Any

import torch

IGNORED_LABEL = -100


def label_smoothed_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int | None = None,
    num_items_in_batch: torch.Tensor | int | None = None,
    label_smoothing: float = 0.0,
    **kwargs: Any,
) -> torch.Tensor:
    """Section 5.4: mean cross-entropy in nats per label, against 1 - ε_ls on the label and ε_ls / V on every type.

    Args:
        logits: (batch, target length, vocabulary).
        labels: (batch, target length), -100 where a label does not count.
        vocab_size: Not needed; the library's losses have it.
        num_items_in_batch: Divisor of the sum; the number of labels that count if None.
        label_smoothing: ε_ls.
        **kwargs: Other arguments of `forward`; not used.
    """
    total = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    return total / number_of_items(labels, num_items_in_batch)


def next_token_loss(
    logits: torch.Tensor, labels: torch.Tensor, shift_labels: torch.Tensor | None = None, **kwargs: Any
) -> torch.Tensor:
    """`label_smoothed_loss` of each position's logits against the next position's label, for decoder-only models.

    Args:
        logits: (batch, length, vocabulary).
        labels: (batch, length); the first is predicted by no position.
        shift_labels: (batch, length), given instead of `labels` if each already stands at the position that predicts
            it.
        **kwargs: Passed on to `label_smoothed_loss`.
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
    """Mean loss per row, or per number of a row, by the library's `problem_type`.

    Args:
        logits: (rows, labels).
        labels: Classes in any shape, -100 where a label does not count; or (rows, labels): 0 and 1 for several labels
            each, or numbers for regression. Without any labels the loss is zero, for a process that has no row in a
            step.
        problem_type: `regression`, `single_label_classification` or `multi_label_classification`.
        num_items_in_batch: Divisor of the sum; the number of labels in this batch if None.
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
    """Returns the divisor of a summed loss: the given number, or the number of labels that count."""
    if num_items_in_batch is None:
        return (labels != IGNORED_LABEL).sum().clamp(min=1)
    return num_items_in_batch.to(labels.device) if isinstance(num_items_in_batch, torch.Tensor) else num_items_in_batch


def check_labels(labels: torch.Tensor, vocab_size: int) -> None:
    """Refuses labels outside the vocabulary. An accelerator finds them itself: checking there would make it wait.

    Raises:
        ValueError: A label is neither a type nor -100.
    """
    if type(labels) is not torch.Tensor or labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    wrong = labels[(labels != IGNORED_LABEL) & ((labels < 0) | (labels >= vocab_size))]
    if len(wrong):
        raise ValueError(
            f"A label is {int(wrong[0])}: labels are ids from 0 to {vocab_size - 1:,}, or {IGNORED_LABEL} where they "
            "do not count."
        )


def check_mask(mask_BT: torch.Tensor | None, length: int) -> None:
    """Refuses a mask (batch, tokens) of another length: which tokens it covers would be unclear.

    Raises:
        ValueError: It is longer or shorter.
    """
    if mask_BT is None or mask_BT.dim() != 2 or torch.compiler.is_compiling() or mask_BT.shape[1] == length:
        return
    raise ValueError(
        f"An attention mask is for {mask_BT.shape[1]:,} tokens, and there are {length:,}: give one for each."
    )
