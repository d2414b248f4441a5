"""The linear layers of decoding without gradients: on live weights, or on weights packed for the processor."""

import sys
from collections.abc import Callable
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

# Rows and outputs (a vocabulary's) from which oneDNN is faster with 8 bits than torch's default engine.
MANY_ROWS = 32
MANY_OUTPUTS = 4096
# Multiplications, and weight size, from which oneDNN's packed linear is faster in float32 than `F.linear`: below, its
# fixed cost per call exceeds the multiplication.
PACKED_FROM = 1 << 20
LARGE_WEIGHT, VOCABULARY = 1 << 18, 1 << 22
# Shapes that MKL multiplies faster with a large unpacked weight, if `multiplies_few_rows_unpacked`.
FEW_ROWS, FEW_INPUTS = 4, 1024

Linear = Callable[[torch.Tensor], torch.Tensor]
Projections = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
ResidualLinear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class PositionTable:
    """Section 3.5's encodings by position; sinusoidal ones are computed once, learned ones are those of `weight`."""

    def __init__(self, module: Any, weight: torch.Tensor | None) -> None:
        self.module = module
        self._table = torch.empty(0) if weight is None else weight

    def of(self, position: int, device: torch.device) -> torch.Tensor:
        """Returns the encoding of one position, (d_model,)."""
        return self.first(position + 1, device)[position]

    def at(self, positions: torch.Tensor, longest: int) -> torch.Tensor:
        """Returns the encodings of positions that are all below `longest`, (..., d_model)."""
        return F.embedding(positions, self.first(longest, positions.device))

    def first(self, length: int, device: torch.device) -> torch.Tensor:
        """Returns the encodings of `length` or more positions, (length or more, d_model).

        Raises:
            ValueError: There are fewer learned positions.
        """
        if len(self._table) < length or self._table.device != device:
            self._table = self.module(length if self.module.learned is not None else 2 * length + 16, device=device)
        return self._table


class LiveWeights(NamedTuple):
    """Linear layers that read the model's weights in place.

    Attributes:
        dtype: Type of weights and activations.
    """

    dtype: torch.dtype

    @property
    def activations(self) -> torch.dtype:
        """Type of the inputs and outputs of the linear layers."""
        return self.dtype

    def projections(self, *modules: nn.Linear, scaled: float = 1.0) -> Projections:
        """Maps x to the outputs of several linear layers, the first one's `scaled`."""
        first, *others = [_live_linear(module.weight, module.bias) for module in modules]
        return lambda x: (first(x) * scaled, *(linear(x) for linear in others))

    def linear(self, module: nn.Linear, activation: nn.Module | None = None) -> Linear:
        """Maps x to xWᵀ + b, (rows, in) to (rows, out), followed by the activation."""
        relu = type(activation) is nn.ReLU
        return _activated(_live_linear(module.weight, module.bias, relu), None if relu else activation)

    def residual_linear(self, module: nn.Linear) -> ResidualLinear:
        """Maps x and residual r to r + xWᵀ + b."""
        linear = _live_linear(module.weight, module.bias)
        return lambda x, residual: linear(x).add_(residual)

    def norm(self, module: nn.LayerNorm) -> Linear:
        """Returns a layer normalisation."""
        return _norm(module, module.weight, module.bias)

    def embedding(self, module: nn.Embedding) -> torch.Tensor:
        """Returns the embeddings, (entries, width)."""
        return module.weight

    def positions(self, module: Any) -> PositionTable:
        """Returns the positional encodings."""
        return PositionTable(module, None if module.learned is None else module.learned.weight)


class PackedWeights(NamedTuple):
    """Linear layers on copies of the weights, in the layout that the processor multiplies fastest.

    Attributes:
        dtype: Type of the activations, and of the weights unless they are quantized.
        quantization: None, or "int8" for 8-bit weights and activations rounded to 8 bits at each call; everything
            between the linear layers is then computed in float32.
        few_rows: Whether inputs may have few rows, as in a decoding step for one sentence.
    """

    dtype: torch.dtype
    quantization: str | None = None
    few_rows: bool = False

    @property
    def activations(self) -> torch.dtype:
        """Type of the inputs and outputs of the linear layers."""
        return torch.float32 if self.quantization else self.dtype

    def projections(self, *modules: nn.Linear, scaled: float = 1.0) -> Projections:
        """Maps x to the outputs of several linear layers, the first one's `scaled`, in one matrix product."""
        factors = [scaled] + [1.0] * (len(modules) - 1)
        weight = torch.cat([module.weight * factor for module, factor in zip(modules, factors, strict=True)])
        bias = None
        if modules[0].bias is not None:
            bias = torch.cat([module.bias * factor for module, factor in zip(modules, factors, strict=True)])
        linear, widths = self._packed(weight, bias), [len(module.weight) for module in modules]
        if len(widths) == 1:
            return lambda x: (linear(x),)
        return lambda x: linear(x).split_with_sizes(widths, 1)

    def linear(self, module: nn.Linear, activation: nn.Module | None = None) -> Linear:
        """Maps x to xWᵀ + b, (rows, in) to (rows, out), followed by the activation."""
        relu = type(activation) is nn.ReLU
        return _activated(self._packed(module.weight, module.bias, relu), None if relu else activation)

    def residual_linear(self, module: nn.Linear) -> ResidualLinear:
        """Maps x and residual r to r + xWᵀ + b."""
        weight, bias = module.weight, module.bias if module.bias is None else module.bias.detach()
        linear = self._packed(weight, bias)
        if self.quantization is not None or weight.numel() >= LARGE_WEIGHT or self.dtype != torch.float32:
            return lambda x, residual: linear(x).add_(residual)
        few = _too_few_to_pack(weight) if weight.device.type == "cpu" and _can_pack(self.dtype) else sys.maxsize
        transposed = weight.detach().to(self.dtype, copy=True).mT
        bias = None if bias is None else bias.to(self.dtype, copy=True)

        def add_linear(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
            if x.shape[0] >= few:
                return linear(x).add_(residual)
            outputs = torch.addmm(residual, x, transposed)
            return outputs if bias is None else outputs.add_(bias)

        return add_linear

    def norm(self, module: nn.LayerNorm) -> Linear:
        """Returns a layer normalisation in the type of the activations."""
        weights = (
            None if part is None else part.detach().to(self.activations, copy=True)
            for part in (module.weight, module.bias)
        )
        return _norm(module, *weights)

    def embedding(self, module: nn.Embedding) -> torch.Tensor:
        """Returns a copy of the embeddings, (entries, width)."""
        return module.weight.detach().clone()

    def positions(self, module: Any) -> PositionTable:
        """Returns the positional encodings."""
        return PositionTable(module, None if module.learned is None else module.learned.weight.detach().clone())

    def _packed(self, weight: torch.Tensor, bias: torch.Tensor | None, relu: bool = False) -> Linear:
        if self.quantization == "int8":
            return _int8_linear(weight, bias, relu)
        copied = weight.detach().to(self.dtype, copy=True)
        bias = None if bias is None else bias.detach().to(self.dtype, copy=True)
        if copied.device.type == "cpu" and _can_pack(self.dtype):
            return _onednn_linear(copied, bias, relu, self.few_rows)
        return _plain_linear(copied, bias, relu)


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


def _activated(linear: Linear, activation: nn.Module | None) -> Linear:
    return linear if activation is None else lambda x: activation(linear(x))


def _norm(module: nn.LayerNorm, weight: torch.Tensor | None, bias: torch.Tensor | None) -> Linear:
    shape, eps = module.normalized_shape, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def _can_pack(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and has_bfloat16_products())


def _onednn_linear(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool, few_rows: bool) -> Linear:
    """Uses oneDNN, with the weight reordered once: `F.linear` reorders it at each call, or uses a slower library."""
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
    """Returns the number of rows from which oneDNN multiplies a small weight faster."""
    return -(-PACKED_FROM // weight.numel())


def _live_linear(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool = False) -> Linear:
    """`F.linear`, except where it is slow: few rows by a vocabulary take half the time transposed, many by oneDNN."""
    plain = _plain_linear(weight, bias, relu)
    if weight.device.type != "cpu" or weight.numel() < LARGE_WEIGHT or not _can_pack(weight.dtype):
        return plain
    then, is_vocabulary = "relu" if relu else "none", weight.numel() >= VOCABULARY and not relu

    def by_rows(x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        if is_vocabulary and 1 < rows <= FEW_ROWS:
            outputs = torch.mm(weight, x.mT).mT.contiguous()
            return outputs if bias is None else outputs.add_(bias)
        if rows > FEW_ROWS if is_vocabulary else rows >= MANY_ROWS:
            return torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "")
        return plain(x)

    return by_rows


def _plain_linear(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> Linear:
    if relu:
        return lambda x: F.linear(x, weight, bias).relu_()
    return lambda x: F.linear(x, weight, bias)


def _int8_linear(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> Linear:
    """Multiplies 8-bit numbers: the weight has a scale per output, the activations one per call."""
    multiply = torch.ops.quantized.linear_relu_dynamic if relu else torch.ops.quantized.linear_dynamic
    quantized = torch.backends.quantized
    packed = _packed_int8(weight, bias, quantized.engine)
    # Without VNNI oneDNN is not faster.
    if len(weight) < MANY_OUTPUTS or "onednn" not in quantized.supported_engines or saturates("onednn"):
        return lambda x: multiply(x, packed)
    packed_for_many = _packed_int8(weight, bias, "onednn")
    return lambda x: multiply(x, packed if x.shape[0] < MANY_ROWS else packed_for_many)


def _packed_int8(weight: torch.Tensor, bias: torch.Tensor | None, engine: str) -> Any:
    """Packs 8-bit weights in the engine's order; 7-bit ones where sums of 8-bit products would saturate."""
    weight, bias = weight.detach().float(), None if bias is None else bias.detach().float()
    scales = weight.abs().amax(1).clamp(min=1e-8).double() / (64 if saturates(engine) else 127)
    with int8_engine(engine), without_deprecation():
        rounded = torch.quantize_per_channel(weight, scales, torch.zeros(len(weight)).long(), 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(rounded, bias)
