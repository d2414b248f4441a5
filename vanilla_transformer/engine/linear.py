"""The linear layers of decoding without gradients, on live weights."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from .cpu import has_bfloat16_products

# Multiplications from which oneDNN is faster in float32 than torch's own product, and the weight size above which it
# always is: below, its fixed cost per call exceeds the multiplication.
ONEDNN_FROM = 3 << 18
LARGE_WEIGHT = 1 << 18

Linear = Callable[[torch.Tensor], torch.Tensor]
# Maps x, and a residual that may be overwritten, to the residual + xWᵀ + b.
ResidualLinear = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True)
class Weights:
    """A model's linear layers and norms for decoding, read in place, or converted where their type is another.

    Attributes:
        dtype: Type of the weights and the activations.
    """

    dtype: torch.dtype

    def projections(self, *modules: nn.Linear, heads: int, scaled: float = 1.0) -> Linear:
        """Maps x to the outputs of several linear layers side by side in each head, the first one's `scaled`."""
        first, *others = map(self.linear, modules)
        return lambda x: _side_by_side([first(x) * scaled, *(linear(x) for linear in others)], heads)

    def linear(self, module: nn.Linear, activation: nn.Module | None = None) -> Linear:
        """Maps x to xWᵀ + b, (rows, in) to (rows, out), followed by the activation."""
        relu = type(activation) is nn.ReLU
        multiply = self._linear(module.weight, module.bias, relu)
        if relu or activation is None:
            return lambda x: multiply(x, None)
        return lambda x: activation(multiply(x, None))

    def residual_linear(self, module: nn.Linear) -> ResidualLinear:
        """Maps x and residual r to r + xWᵀ + b; may overwrite r."""
        return self._linear(module.weight, module.bias)

    def norm(self, module: nn.LayerNorm) -> Linear:
        """Returns a layer normalisation in the type of the activations."""
        weight, bias = module.weight.to(self.dtype), module.bias.to(self.dtype)
        shape, eps = module.normalized_shape, module.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None, relu: bool = False) -> ResidualLinear:
        return _float_linear(weight.to(self.dtype), None if bias is None else bias.to(self.dtype), relu)


def _multiplies(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether oneDNN multiplies this type here."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and has_bfloat16_products())


def _side_by_side(parts: list[torch.Tensor], heads: int) -> torch.Tensor:
    """Joins outputs for all heads, head by head."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part.unflatten(1, (heads, -1)) for part in parts], 2).flatten(1, 2)


def _float_linear(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> ResidualLinear:
    """Multiplies by oneDNN where that is fastest: torch's own products use a slower library."""
    for_few_rows = _plain(weight.mT, bias, relu)
    if not (_multiplies(weight.device, weight.dtype) and weight.is_contiguous()):
        return for_few_rows
    then = "relu" if relu else "none"

    def by_onednn(x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        outputs = torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "")
        return outputs if residual is None else outputs.add_(residual)

    if weight.dtype != torch.float32 or weight.numel() > LARGE_WEIGHT:
        return by_onednn
    least = -(-ONEDNN_FROM // weight.numel())
    return lambda x, residual: (for_few_rows if x.shape[0] < least else by_onednn)(x, residual)


def _plain(transposed: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> ResidualLinear:
    def multiply(x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        if residual is not None and bias is None:
            return residual.addmm_(x, transposed)
        outputs = x.mm(transposed) if bias is None else torch.addmm(bias, x, transposed)
        if residual is not None:
            return outputs.add_(residual)
        return outputs.relu_() if relu else outputs

    return multiply
