"""The linear layers of decoding without gradients, on live weights, in torch's own products."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]
# Maps x, and a residual that may be overwritten, to the residual + xWᵀ + b.
ResidualLinear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def projections(modules: list[nn.Linear], heads: int, scaled: float, dtype: torch.dtype) -> Linear:
    """Maps x to the outputs of several linear layers side by side in each head, the first one's `scaled`."""
    first, *others = (linear(module, dtype) for module in modules)
    return lambda x: _side_by_side([first(x) * scaled, *(linear(x) for linear in others)], heads)


def linear(module: nn.Linear, dtype: torch.dtype, activation: nn.Module | None = None) -> Linear:
    """Maps x to xWᵀ + b, (rows, in) to (rows, out), followed by the activation."""
    weight, bias = _parts(module, dtype)
    if activation is None:
        return lambda x: F.linear(x, weight, bias)
    return lambda x: activation(F.linear(x, weight, bias))


def residual_linear(module: nn.Linear, dtype: torch.dtype) -> ResidualLinear:
    """Maps x and residual r to r + xWᵀ + b; may overwrite r."""
    weight, bias = _parts(module, dtype)
    if bias is None:
        return lambda x, residual: residual.addmm_(x, weight.mT)
    return lambda x, residual: F.linear(x, weight, bias).add_(residual)


def norm(module: nn.LayerNorm, dtype: torch.dtype) -> Linear:
    """Returns a layer normalisation in the type of the activations."""
    weight, bias = _parts(module, dtype)
    shape, eps = module.normalized_shape, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def _parts(module: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns weight and bias, read in place, or converted where their type is another."""
    return module.weight.to(dtype), None if module.bias is None else module.bias.to(dtype)


def _side_by_side(parts: list[torch.Tensor], heads: int) -> torch.Tensor:
    """Joins outputs for all heads, head by head."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part.unflatten(1, (heads, -1)) for part in parts], 2).flatten(1, 2)
