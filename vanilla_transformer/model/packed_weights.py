"""Linear layers for decoding: weights packed in the order that the processor multiplies fastest, no gradients."""

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from .cpu import (
    has_bfloat16_products,
    int8_engine,
    multiplies_few_rows_unpacked,
    saturates,
    without_deprecation,
)

# With 8 bits oneDNN is faster than torch's default engine from so many rows and outputs (a vocabulary's) on.
MANY_ROWS = 32
MANY_OUTPUTS = 4096
# In float32 oneDNN's packed linear is faster than `F.linear` from so many multiplications on, or so large a weight:
# below, its fixed cost per call takes longer than the multiplication.
PACKED_FROM = 1 << 20
LARGE_WEIGHT = 1 << 18
# Shapes that MKL multiplies faster with a large unpacked weight, where `multiplies_few_rows_unpacked`.
FEW_ROWS, FEW_INPUTS = 4, 1024
# Numbers of 64 bits in a row for checksums, and rows that are summed both ways while they are near the processor.
ROW, ROWS = 128, 1024

Linear = Callable[[torch.Tensor], torch.Tensor]
ResidualLinear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class PackedWeights(NamedTuple):
    """How weights are packed for linear layers that are called again and again.

    Attributes:
        dtype: Type of the activations, and of the weights unless they are quantized.
        quantization: None, or "int8" for weights of 8 bits and activations that are rounded to 8 bits for each
            call; everything between the linear layers is computed in float32 then.
        few_rows: Whether there will be inputs of a few rows, as in a decoding step for one sentence.
    """

    dtype: torch.dtype
    quantization: str | None
    few_rows: bool = False

    @property
    def activations(self) -> torch.dtype:
        """Type of the inputs and outputs of the linear layers."""
        return torch.float32 if self.quantization else self.dtype

    def fused_linear(self, *modules: nn.Linear, scaled: float = 1.0) -> Linear:
        """Several linear layers as one, their outputs concatenated, the first one's `scaled`."""
        factors = [scaled] + [1.0] * (len(modules) - 1)
        weight = torch.cat([module.weight * factor for module, factor in zip(modules, factors, strict=True)])
        if modules[0].bias is None:
            return self.linear(weight, None)
        return self.linear(
            weight, torch.cat([module.bias * factor for module, factor in zip(modules, factors, strict=True)])
        )

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None, activation: nn.Module | None = None) -> Linear:
        """x to xWᵀ + b, (rows, in) to (rows, out), and the activation of that."""
        relu = isinstance(activation, nn.ReLU)
        if self.quantization == "int8":
            linear = _int8_linear(weight, bias, relu)
        else:
            weight, bias = weight.detach().to(self.dtype), None if bias is None else bias.detach().to(self.dtype)
            if weight.device.type == "cpu" and _can_pack(self.dtype):
                linear = _onednn_linear(weight, bias, relu, self.few_rows)
            else:
                linear = _plain_linear(weight, bias, relu)
        if activation is None or relu:
            return linear
        return lambda x: activation(linear(x))

    def residual_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> ResidualLinear:
        """x and residual r to r + xWᵀ + b."""
        linear = self.linear(weight, bias)
        if self.quantization is not None or weight.numel() >= LARGE_WEIGHT or self.dtype != torch.float32:
            return lambda x, residual: linear(x).add_(residual)
        few = _too_few_to_pack(weight) if weight.device.type == "cpu" and _can_pack(self.dtype) else sys.maxsize
        transposed = weight.detach().to(self.dtype).mT
        bias = None if bias is None else bias.detach().to(self.dtype)

        def add_linear(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
            if x.shape[0] >= few:
                return linear(x).add_(residual)
            outputs = torch.addmm(residual, x, transposed)
            return outputs if bias is None else outputs.add_(bias)

        return add_linear

    def norm(self, module: nn.LayerNorm) -> Linear:
        """A layer normalisation in the type of the activations."""
        weight, bias = module.weight.to(self.activations), module.bias.to(self.activations)
        shape, eps = module.normalized_shape, module.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


class PositionTable:
    """Section 3.5's encodings by position, kept as long as they are no weights."""

    def __init__(self, module: Any, dtype: torch.dtype) -> None:
        self.module, self.dtype = module, dtype
        self._table = torch.empty(0)

    def of(self, position: int, device: torch.device) -> torch.Tensor:
        """The encoding of one position, (d_model,)."""
        if self.module.learned is not None:
            return self.module(1, position, device).to(self.dtype)[0]
        return self.first(position + 1, device)[position]

    def at(self, positions: torch.Tensor, longest: int) -> torch.Tensor:
        """The encodings of some positions, of which the highest is below `longest`, (..., d_model)."""
        return F.embedding(positions, self.first(longest, positions.device))

    def first(self, length: int, device: torch.device) -> torch.Tensor:
        """The encodings of at least so many positions, (length or more, d_model)."""
        if self.module.learned is not None:
            return self.module(length, device=device).to(self.dtype)
        table = self._table
        if len(table) < length or table.device != device:
            table = self._table = self.module(2 * length + 16, device=device).to(self.dtype)
        return table


def checksum(weights: Iterable[torch.Tensor]) -> torch.Tensor:
    """Integers that differ once a weight differs, however it was changed: through `.data`, NumPy or shared memory.

    Exact sums of the bits along the rows and the columns of a table: any change of one number, and any exchange of
    two, of rows or of columns changes some. It costs one reading of the weights from memory.
    """
    sums: list[torch.Tensor] = []
    for weight in weights:
        bits = as_integers(weight.detach().contiguous())
        if bits.dim() < 2:
            sums.append(bits.flatten())
            continue
        table = bits.view(-1, bits.shape[-1] if bits.numel() % ROW else ROW)
        for part in table.split(ROWS):
            sums += [part.sum(0), part.sum(1)]
    return torch.cat([part.to(torch.long) for part in sums])


def as_integers(weight: torch.Tensor) -> torch.Tensor:
    """The bits of a weight, as integers of 64 bits where a row can be read so: a view."""
    size = weight.element_size()
    if (
        weight.is_contiguous()
        and weight.dim()
        and not weight.shape[-1] * size % 8
        and not weight.storage_offset() * size % 8
    ):
        return weight.view(torch.int64)
    return weight.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])


def _can_pack(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and has_bfloat16_products())


def _onednn_linear(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool, few_rows: bool) -> Linear:
    """By oneDNN, with the weight reordered once: `F.linear` reorders it at each call, or takes a slower library."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    then = "relu" if relu else "none"

    def by_onednn(x: torch.Tensor, weight: torch.Tensor = packed) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "")

    if weight.dtype != torch.float32:
        return by_onednn
    if weight.numel() < LARGE_WEIGHT:
        plain = _plain_linear(weight, bias, relu)
        few = _too_few_to_pack(weight)
        return lambda x: plain(x) if x.shape[0] < few else by_onednn(x)
    if not few_rows or not multiplies_few_rows_unpacked():
        return by_onednn
    few = FEW_ROWS if weight.shape[1] <= FEW_INPUTS else 1

    def by_rows(x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        if rows > few:
            return by_onednn(x)
        if rows == 1:
            return by_onednn(x, weight)
        outputs = torch.mm(weight, x.mT).mT.contiguous()
        outputs = outputs if bias is None else outputs.add_(bias)
        return outputs.relu_() if relu else outputs

    return by_rows


def _too_few_to_pack(weight: torch.Tensor) -> int:
    """Rows from which on oneDNN multiplies a small weight faster."""
    return -(-PACKED_FROM // weight.numel())


def _plain_linear(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> Linear:
    if relu:
        return lambda x: F.linear(x, weight, bias).relu_()
    return lambda x: F.linear(x, weight, bias)


def _int8_linear(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> Linear:
    """8 bits a number: the weight with a scale for each output, the activations with one for each call."""
    multiply = torch.ops.quantized.linear_relu_dynamic if relu else torch.ops.quantized.linear_dynamic
    quantized = torch.backends.quantized
    packed = _packed_int8(weight, bias, quantized.engine)
    # Without VNNI oneDNN is not the faster one.
    if len(weight) < MANY_OUTPUTS or "onednn" not in quantized.supported_engines or saturates("onednn"):
        return lambda x: multiply(x, packed)
    packed_for_many = _packed_int8(weight, bias, "onednn")
    return lambda x: multiply(x, packed if x.shape[0] < MANY_ROWS else packed_for_many)


def _packed_int8(weight: torch.Tensor, bias: torch.Tensor | None, engine: str) -> Any:
    """Weights of 8 bits in the engine's order; of 7 where its sums of more would saturate."""
    weight, bias = weight.detach().float(), None if bias is None else bias.detach().float()
    scales = weight.abs().amax(1).clamp(min=1e-8).double() / (64 if saturates(engine) else 127)
    with int8_engine(engine), without_deprecation():
        rounded = torch.quantize_per_channel(weight, scales, torch.zeros(len(weight)).long(), 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(rounded, bias)


__all__ = ["Linear", "PackedWeights", "PositionTable", "ResidualLinear", "as_integers", "checksum"]
