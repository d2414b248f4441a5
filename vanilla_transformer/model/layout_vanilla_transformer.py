"""A layer's products for decoding: weights in the order that the processor multiplies fastest with, no gradients."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from .cpu_vanilla_transformer import has_bfloat16_products, int8_engine, saturates, without_deprecation

# With 8 bits oneDNN is faster than torch's own choice from so many rows and outputs, a vocabulary's, on.
MANY_ROWS = 32
MANY_OUTPUTS = 4096
# Numbers of 64 bits that are summed along both dimensions while they are near the processor: 4 MiB.
SUMMED_AT_ONCE = 1 << 19

Product = Callable[[torch.Tensor], torch.Tensor]


class Layout(NamedTuple):
    """How weights are laid out for products that are asked for again and again.

    Attributes:
        dtype: Type of the activations, and of the weights unless they are quantized.
        quantization: None, or "int8" for weights of 8 bits and activations that are rounded to 8 bits for each
            product; what lies between the products is computed in float32 then.
    """

    dtype: torch.dtype
    quantization: str | None

    @property
    def activations(self) -> torch.dtype:
        """Type of what goes into the products and comes out of them."""
        return torch.float32 if self.quantization else self.dtype

    def joined(self, *modules: nn.Linear, scaled: float = 1.0) -> Product:
        """One product with the weights of several, their outputs side by side, the first one's `scaled`."""
        factors = [scaled] + [1.0] * (len(modules) - 1)
        weight = torch.cat([module.weight * factor for module, factor in zip(modules, factors, strict=True)])
        if modules[0].bias is None:
            return self.product(weight, None)
        return self.product(
            weight, torch.cat([module.bias * factor for module, factor in zip(modules, factors, strict=True)])
        )

    def product(self, weight: torch.Tensor, bias: torch.Tensor | None, activation: nn.Module | None = None) -> Product:
        """x to xWᵀ + b, (rows, in) to (rows, out), and the activation of that."""
        relu = isinstance(activation, nn.ReLU)
        if self.quantization == "int8":
            product = _int8_product(weight, bias, relu)
        elif weight.device.type == "cpu" and _has_packed_products(self.dtype):
            product = _packed_product(weight.to(self.dtype), None if bias is None else bias.to(self.dtype), relu)
        else:
            weight = weight.to(self.dtype)
            bias = None if bias is None else bias.to(self.dtype)
            if relu:
                return lambda x: F.linear(x, weight, bias).relu_()
            product = lambda x: F.linear(x, weight, bias)  # noqa: E731
        if activation is None or relu:
            return product
        return lambda x: activation(product(x))

    def norm(self, module: nn.LayerNorm) -> Product:
        """A layer normalisation in the type of the activations."""
        weight, bias = module.weight.to(self.activations), module.bias.to(self.activations)
        return lambda x: F.layer_norm(x, module.normalized_shape, weight, bias, module.eps)


def checksum(weights: Iterable[torch.Tensor]) -> torch.Tensor:
    """Integers that differ once a weight differs, however it was changed: through `.data`, NumPy or shared memory.

    Sums of the bits along both dimensions, exact: each number, and each exchange of two, of rows or of columns
    changes some. It costs one reading of the weights from memory.
    """
    sums: list[torch.Tensor] = []
    for weight in weights:
        bits = _as_integers(weight.detach())
        if bits.dim() < 2:
            sums.append(bits.flatten())
            continue
        for part in bits.flatten(0, -2).split(max(1, SUMMED_AT_ONCE // bits.shape[-1])):
            sums += [part.sum(0), part.sum(1)]
    return torch.cat([part.to(torch.long) for part in sums])


def _as_integers(weight: torch.Tensor) -> torch.Tensor:
    """The bits of a weight as integers of 64 bits where a row can be read so."""
    weight, size = weight.contiguous(), weight.element_size()
    if weight.dim() and not weight.shape[-1] * size % 8 and not weight.storage_offset() * size % 8:
        return weight.view(torch.int64)
    return weight.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])


def _has_packed_products(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and has_bfloat16_products())


def _packed_product(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> Product:
    """By oneDNN, with the weight in its order: `F.linear` puts it there each time, or takes a slower library."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    then = "relu" if relu else "none"
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, then, [], "")


def _int8_product(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> Product:
    """8 bits a number: the weight with a scale for each output, the activations with one for each product."""
    multiply = torch.ops.quantized.linear_relu_dynamic if relu else torch.ops.quantized.linear_dynamic
    quantized = torch.backends.quantized
    packed = _packed_int8(weight, bias, quantized.engine)
    # Without VNNI oneDNN is not the faster one.
    if len(weight) < MANY_OUTPUTS or "onednn" not in quantized.supported_engines or saturates("onednn"):
        return lambda x: multiply(x, packed)
    packed_for_many = _packed_int8(weight, bias, "onednn")
    return lambda x: multiply(x, packed if len(x) < MANY_ROWS else packed_for_many)


def _packed_int8(weight: torch.Tensor, bias: torch.Tensor | None, engine: str) -> Any:
    """Weights of 8 bits in the engine's order; of 7 where it has no room for the sums of more."""
    weight, bias = weight.detach().float(), None if bias is None else bias.detach().float()
    scales = weight.abs().amax(1).clamp(min=1e-8).double() / (64 if saturates(engine) else 127)
    with int8_engine(engine), without_deprecation():
        rounded = torch.quantize_per_channel(weight, scales, torch.zeros(len(weight)).long(), 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(rounded, bias)


__all__ = ["Layout", "Product", "checksum"]
