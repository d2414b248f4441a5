"""Section 5.4: cross-entropy with label smoothing that holds the logits of only a part of the batch at a time.

Shapes in names: N rows, the target positions of a batch · D d_model · V vocabulary.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

IGNORED_LABEL = -100

# Number of logits held at once: enough for whole matrix products, few compared with a batch's hundreds of millions.
_LOGITS_TOGETHER = {"cpu": 2**25, "cuda": 2**27}
# Number of logits that a CPU keeps in its cache from the first pass over them to the last.
_LOGITS_IN_CACHE = 2**19


def summed_cross_entropy(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    labels_N: torch.Tensor,
    label_smoothing: float = 0.0,
    bias_V: torch.Tensor | None = None,
) -> torch.Tensor:
    """Section 5.4: Σ over rows of -Σ q log softmax(logits), q = 1 - ε_ls on the label + ε_ls / V on each type.

    Equals `torch.nn.functional.cross_entropy` over all logits, without holding them: each part's gradient is computed
    while its logits exist. Under autocast the matrix products are in its dtype, the rest is float32.

    Args:
        hidden_ND: Outputs of the decoder, (rows, d_model).
        weight_VD: The output projection, (vocabulary, d_model).
        labels_N: Types, (rows,); rows with -100 do not count.
        label_smoothing: ε_ls.
        bias_V: Added to the logits, (vocabulary,); the paper has none.

    Returns:
        The sum in nats, a float32 scalar.
    """
    device = hidden_ND.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_ND.dtype
    total: torch.Tensor = _SummedCrossEntropy.apply(
        hidden_ND, weight_VD, bias_V, labels_N, label_smoothing, dtype, torch.is_grad_enabled()
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
                total += _to_gradient_(logits_NV[few], labels_N[rows][few], label_smoothing)
            if with_gradients:
                # Rows that do not count are masked here: the logits have many times more values.
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
        return hidden_gradient_ND, ctx.weight_gradient_VD * scale, bias_gradient_V, None, None, None, None


def _to_gradient_(logits_NV: torch.Tensor, labels_N: torch.Tensor, label_smoothing: float) -> torch.Tensor:
    """Returns the summed loss of the rows that count; overwrites all logits by its gradient, softmax(logits) - q.

    Exponentials cost more than everything else here, and the softmax computes them all: the logarithm of its
    denominator is the largest logit minus the logarithm of the largest probability, which is never far from 1.
    """
    on_each = label_smoothing / logits_NV.shape[1]
    labels_N1 = labels_N.masked_fill(labels_N == IGNORED_LABEL, 0)[:, None]
    # A CPU reads bfloat16 slowly, and would do so three times; an accelerator is bound by memory, and reads less of
    # it.
    read_NV = logits_NV.float() if logits_NV.device.type == "cpu" else logits_NV
    softmax_NV = read_NV.softmax(dim=-1, dtype=torch.float32)
    log_denominator_N1 = read_NV.amax(-1, keepdim=True).float() - softmax_NV.amax(-1, keepdim=True).log()
    of_labels_N1 = read_NV.gather(1, labels_N1).float()
    sum_N1 = read_NV.sum(-1, keepdim=True, dtype=torch.float32)
    loss_N1 = log_denominator_N1 - (1 - label_smoothing) * of_labels_N1 - on_each * sum_N1
    softmax_NV.scatter_add_(1, labels_N1, torch.full_like(of_labels_N1, label_smoothing - 1))
    torch.sub(softmax_NV, on_each, out=logits_NV)
    return loss_N1.masked_fill_((labels_N == IGNORED_LABEL)[:, None], 0.0).sum()
