"""The linear layers of decoding without gradients: on live weights, or on weights packed for the processor."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from .cpu import has_bfloat16_products, saturates, without_deprecation

# Multiplications from which oneDNN's packed linear is faster in float32 than torch's own, and the weight size above
# which it always is: below, its fixed cost per call exceeds the multiplication.
PACKED_FROM = 3 << 18
LARGE_WEIGHT = 1 << 18

Linear = Callable[[torch.Tensor], torch.Tensor]
# Maps x, and a residual that may be overwritten, to the residual + xWᵀ + b.
ResidualLinear = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True)
class Weights:
    """A model's linear layers and norms for decoding: read in place, or packed once they no longer change.

    Attributes:
        dtype: Type of the activations, and of the weights unless they are quantized.
        packed: Whether weights are kept in the layout that the processor multiplies fastest.
        quantization: None, or "int8" for packed weights of 8 bits and activations rounded to 8 bits at each call;
            everything between the linear layers is then computed in float32.
    """

    dtype: torch.dtype
    packed: bool = False
    quantization: str | None = None

    @property
    def activations(self) -> torch.dtype:
        """Type of the inputs and outputs of the linear layers."""
        return torch.float32 if self.quantization else self.dtype

    def projections(self, *modules: nn.Linear, heads: int, scaled: float = 1.0) -> Linear:
        """Maps x to the outputs of several linear layers side by side in each head, the first one's `scaled`.

        One product if they are packed.
        """
        if not self.packed:
            first, *others = map(self.linear, modules)
            return lambda x: _side_by_side([first(x) * scaled, *(linear(x) for linear in others)], heads, 1)
        parts, bias = list(zip(modules, [scaled] + [1.0] * (len(modules) - 1), strict=True)), None
        weight = _side_by_side([module.weight * factor for module, factor in parts], heads, 0)
        if any(module.bias is not None for module in modules):
            biases = [torch.zeros_like(m.weight[:, 0]) if m.bias is None else m.bias * factor for m, factor in parts]
            bias = _side_by_side(biases, heads, 0)
        multiply = self._linear(weight, bias)
        return lambda x: multiply(x, None)

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
        weight, bias = module.weight.to(self.activations), module.bias.to(self.activations)
        shape, eps = module.normalized_shape, module.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None, relu: bool = False) -> ResidualLinear:
        if self.quantization == "int8":
            return _int8_linear(weight, bias, relu)
        return _float_linear(weight.to(self.dtype), None if bias is None else bias.to(self.dtype), relu, self.packed)


def unsupported_quantization(quantization: str | None, device: torch.device) -> str | None:
    """Explains why a quantization is unavailable here; None if it is available.

    Raises:
        ValueError: There is no quantization of that name.
    """
    if quantization not in (None, "int8"):
        raise ValueError(f"quantization must be None or 'int8', not {quantization!r}.")
    if quantization is None:
        return None
    if device.type != "cpu":
        return f"a model on {device}: 8-bit weights are for CPUs"
    if not hasattr(torch.ops.quantized, "linear_dynamic"):
        return f"torch {torch.__version__}, which no longer has 8-bit linear layers"
    if torch.backends.quantized.engine == "none":
        return f"torch {torch.__version__}, which was built without 8-bit linear layers"
    return None


def _can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether oneDNN multiplies this type here."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    has_product = hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return has_product and (dtype == torch.float32 or (dtype == torch.bfloat16 and has_bfloat16_products()))


def _side_by_side(parts: list[torch.Tensor], heads: int, dim: int) -> torch.Tensor:
    """Joins tensors whose dimension `dim` is one of heads, head by head."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part.unflatten(dim, (heads, -1)) for part in parts], dim + 1).flatten(dim, dim + 1)


def _float_linear(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool, pack: bool) -> ResidualLinear:
    """Multiplies by oneDNN where that is fastest: torch's own products use a slower library.

    A weight that is not packed is as fast with one row, and nearly with many.
    """
    if not (_can_pack(weight.device, weight.dtype) and weight.is_contiguous()):
        return _plain(weight.mT, bias, relu)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None) if pack else weight
    then = "relu" if relu else "none"

    def by_onednn(x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        outputs = torch.ops.mkldnn._linear_pointwise(x, packed, bias, then, [], "")
        return outputs if residual is None else outputs.add_(residual)

    if weight.dtype != torch.float32 or weight.numel() > LARGE_WEIGHT:
        return by_onednn
    # Few rows read a weight that is wider than high faster in the other order.
    is_wide = pack and weight.shape[0] >= weight.shape[1]
    for_few_rows = _plain(weight.mT.contiguous() if is_wide else weight.mT, bias, relu)
    least = -(-PACKED_FROM // weight.numel())
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


def _int8_linear(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> ResidualLinear:
    """Multiplies 8-bit numbers: the weight has a scale per output, the activations one per call.

    The weight has 7 bits where sums of 8-bit products would saturate.
    """
    multiply = torch.ops.quantized.linear_relu_dynamic if relu else torch.ops.quantized.linear_dynamic
    weight, bias = weight.detach().float(), None if bias is None else bias.detach().float()
    scales = weight.abs().amax(1).clamp(min=1e-8).double() / (64 if saturates() else 127)
    with without_deprecation():
        rounded = torch.quantize_per_channel(weight, scales, torch.zeros(len(weight)).long(), 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(rounded, bias)
    return lambda x, residual: multiply(x, packed) if residual is None else multiply(x, packed).add_(residual)
