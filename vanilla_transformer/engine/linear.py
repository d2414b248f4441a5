"""The linear layers of decoding without gradients: on live weights, or on weights packed for the processor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .cpu import has_bfloat16_products, saturates, without_deprecation

# Multiplications, and weight size, from which oneDNN's packed linear is faster in float32 than `F.linear`: below, its
# fixed cost per call exceeds the multiplication.
PACKED_FROM = 1 << 20
LARGE_WEIGHT = 1 << 18

Linear = Callable[[torch.Tensor], torch.Tensor]
Projections = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
ResidualLinear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class PositionTable:
    """Section 3.5's encodings by position; sinusoidal ones are computed once, learned ones are those of `weight`."""

    def __init__(self, module: Any, weight: torch.Tensor | None) -> None:
        self.module = module
        self._table = torch.empty(0) if weight is None else weight

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


@dataclass(frozen=True)
class Weights:
    """A model's linear layers, norms and tables for decoding, which read its weights in place.

    Attributes:
        dtype: Type of the activations, and of the weights unless they are quantized.
    """

    dtype: torch.dtype

    @property
    def activations(self) -> torch.dtype:
        """Type of the inputs and outputs of the linear layers."""
        return self.dtype

    def projections(self, *modules: nn.Linear, scaled: float = 1.0) -> Projections:
        """Maps x to the outputs of several linear layers, the first one's `scaled`."""
        first, *others = [self._linear(module.weight, module.bias) for module in modules]
        return lambda x: (first(x) * scaled, *(linear(x) for linear in others))

    def linear(self, module: nn.Linear, activation: nn.Module | None = None) -> Linear:
        """Maps x to xWᵀ + b, (rows, in) to (rows, out), followed by the activation."""
        relu = type(activation) is nn.ReLU
        linear = self._linear(module.weight, module.bias, relu)
        return linear if relu or activation is None else lambda x: activation(linear(x))

    def residual_linear(self, module: nn.Linear) -> ResidualLinear:
        """Maps x and residual r to r + xWᵀ + b."""
        linear = self._linear(module.weight, module.bias)
        return lambda x, residual: linear(x).add_(residual)

    def norm(self, module: nn.LayerNorm) -> Linear:
        """Returns a layer normalisation in the type of the activations."""
        weight, bias = self._own(module.weight), self._own(module.bias)
        shape, eps = module.normalized_shape, module.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)

    def embedding(self, module: nn.Embedding) -> torch.Tensor:
        """Returns the embeddings, (entries, width)."""
        return self._own(module.weight, module.weight.dtype)

    def positions(self, module: Any) -> PositionTable:
        """Returns the positional encodings."""
        return PositionTable(module, None if module.learned is None else self.embedding(module.learned))

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None, relu: bool = False) -> Linear:
        return _float_linear(weight, bias, relu, weight)

    def _own(self, weight: Any, dtype: torch.dtype | None = None) -> Any:
        """Returns a weight as it is kept."""
        return weight


@dataclass(frozen=True)
class PackedWeights(Weights):
    """The same on weights that no longer change, in the layout that the processor multiplies fastest.

    Attributes:
        quantization: None, or "int8" for 8-bit weights and activations rounded to 8 bits at each call; everything
            between the linear layers is then computed in float32.
    """

    quantization: str | None = None

    @property
    def activations(self) -> torch.dtype:
        """Type of the inputs and outputs of the linear layers."""
        return torch.float32 if self.quantization else self.dtype

    def projections(self, *modules: nn.Linear, scaled: float = 1.0) -> Projections:
        """Maps x to the outputs of several linear layers, the first one's `scaled`, in one matrix product."""
        factors, widths = [scaled] + [1.0] * (len(modules) - 1), [len(module.weight) for module in modules]
        parts = list(zip(modules, factors, widths, strict=True))
        weight, bias = torch.cat([module.weight * factor for module, factor, _ in parts]), None
        if any(module.bias is not None for module in modules):
            none = weight.new_zeros(max(widths))
            biases = [none[:width] if module.bias is None else module.bias * by for module, by, width in parts]
            bias = torch.cat(biases)
        linear = self._linear(weight, bias)
        if len(widths) == 1:
            return lambda x: (linear(x),)
        return lambda x: linear(x).split_with_sizes(widths, 1)

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None, relu: bool = False) -> Linear:
        if self.quantization == "int8":
            return _int8_linear(weight, bias, relu)
        weight, bias = self._own(weight, self.dtype), self._own(bias, self.dtype)
        if not _can_pack(weight.device, self.dtype):
            return _float_linear(weight, bias, relu, weight)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        return _float_linear(weight, bias, relu, packed)

    def _own(self, weight: Any, dtype: torch.dtype | None = None) -> Any:
        """Returns a weight in the type of the activations, unless another is given."""
        return None if weight is None else weight.detach().to(dtype or self.activations)


class Layer:
    """The linear layers and norms of one layer of encoder or decoder; the queries' weights include 1 / √d_k."""

    def __init__(self, layer: Any, weights: Weights) -> None:
        own, feed_forward = layer.self_attention, layer.feed_forward
        self.project = weights.projections(own.q_proj, own.k_proj, own.v_proj, scaled=own.d_k**-0.5)
        self.self_out = weights.residual_linear(own.out_proj)
        self.self_norm, self.feed_norm = map(weights.norm, (layer.self_attention_norm, layer.feed_forward_norm))
        if hasattr(layer, "cross_attention"):
            cross = layer.cross_attention
            self.source_query = weights.projections(cross.q_proj, scaled=cross.d_k**-0.5)
            self.cross_out = weights.residual_linear(cross.out_proj)
            self.cross_norm = weights.norm(layer.cross_attention_norm)
        self.first = weights.linear(feed_forward.w_1, feed_forward.activation)
        self.second = weights.residual_linear(feed_forward.w_2)


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


def _float_linear(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool, packed: torch.Tensor) -> Linear:
    """Multiplies by oneDNN where that is fastest: `F.linear` uses a slower library.

    Args:
        weight: (out, in).
        bias: (out,), or None.
        relu: Whether a ReLU follows.
        packed: The weight in oneDNN's order, or as it is, which is as fast with one row, and nearly with many.
    """

    def plain(x: torch.Tensor) -> torch.Tensor:
        outputs = F.linear(x, weight, bias)
        return outputs.relu_() if relu else outputs

    if not (_can_pack(weight.device, weight.dtype) and weight.is_contiguous()):
        return plain
    then = "relu" if relu else "none"

    def by_onednn(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, packed, bias, then, [], "")

    if weight.dtype == torch.float32 and weight.numel() < LARGE_WEIGHT:
        least = -(-PACKED_FROM // weight.numel())
        return lambda x: plain(x) if x.shape[0] < least else by_onednn(x)
    return by_onednn


def _int8_linear(weight: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> Linear:
    """Multiplies 8-bit numbers: the weight has a scale per output, the activations one per call."""
    multiply = torch.ops.quantized.linear_relu_dynamic if relu else torch.ops.quantized.linear_dynamic
    packed = _packed_int8(weight, bias)
    return lambda x: multiply(x, packed)


def _packed_int8(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    """Packs 8-bit weights in the engine's order; 7-bit ones where sums of 8-bit products would saturate."""
    weight, bias = weight.detach().float(), None if bias is None else bias.detach().float()
    few_bits = saturates(torch.backends.quantized.engine)
    scales = weight.abs().amax(1).clamp(min=1e-8).double() / (64 if few_bits else 127)
    with without_deprecation():
        rounded = torch.quantize_per_channel(weight, scales, torch.zeros(len(weight)).long(), 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(rounded, bias)
