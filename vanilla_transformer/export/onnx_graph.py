"""ONNX graphs, written operator by operator from a model's weights, which are copied into them.

Shapes in names: N sentences · R tokens of each that are computed together: all of a source, or the newest of each
hypothesis · S source · L keys · D d_model · H heads · K d_k.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from torch import nn

from vanilla_transformer.engine.known import activations
from vanilla_transformer.model.modeling_vanilla_transformer import DecoderLayer, EncoderLayer, MultiHeadAttention

OPSET, IR_VERSION = 20, 10
OWN_OPERATORS = "com.microsoft"
ACTIVATIONS = activations("onnx")
Shape = Sequence[int | str]


class Graph:
    """A graph under construction: each method adds nodes and returns the name of their output.

    Args:
        around: The outer graph, where this one is the body of a loop in it.
    """

    def __init__(self, around: "Graph | None" = None) -> None:
        # Names inside a loop must differ from those around it.
        self.prefix: str = "" if around is None else f"{around.prefix}{len(around.nodes)}_"
        self.nodes: list[NodeProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.outputs: dict[str, ValueInfoProto] = {}
        self.constants: list[TensorProto] = []
        self._kept: dict[object, str] = {}

    def input(self, name: str, shape: Shape | None, kind: str = "FLOAT", default: object = None) -> str:
        """Adds an input of each run, with its default; in a loop's body, an input of each iteration."""
        name = self.prefix + name
        self.inputs.append(self._described(name, shape, kind))
        if default is not None:
            self._keep(_in_float32(default), name)
        return name

    def output(self, name: str, value: str, shape: Shape, kind: str = "FLOAT") -> None:
        """Names and describes an output."""
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs[name] = self._described(name, shape, kind)

    def constant(self, value: torch.Tensor) -> str:
        """Adds a copy of the value."""
        return self._keep(value, f"{self.prefix}constant_{len(self.constants)}")

    def number(self, *values: float) -> str:
        """Adds a vector of integers, booleans or floats; equal ones share one copy."""
        value = _in_float32(values)
        return self.once((values, value.dtype), lambda: self.constant(value))

    def scalar(self, value: float) -> str:
        """Adds one number without a dimension."""
        number = _in_float32(value)
        return self.once((value, number.dtype), lambda: self.constant(number))

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Adds one node; returns the name of its output."""
        return self.outputs_of(operator, *inputs, outputs=1, **attributes)[0]

    def outputs_of(self, operator: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Adds one node of several outputs; returns their names."""
        names = [f"{self.prefix}{operator}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def loop(self, rounds: str, body: "Graph", first: list[str], results: list[str]) -> list[str]:
        """Repeats another graph, whose own inputs are the iteration number, a boolean, and `first`.

        Args:
            rounds: Maximum number of iterations.
            body: The graph of one iteration; it may use values of this graph.
            first: Inputs of the first iteration; each later one gets the outputs of the iteration before.
            results: Outputs of an iteration: whether to continue, values for the next one, and values to collect.

        Returns:
            The values that the last iteration leaves, and the collected values of all, along a first dimension.
        """
        graph = body.finished(results)
        return self.outputs_of("Loop", rounds, self.scalar(True), *first, outputs=len(results) - 1, body=graph)

    def cast(self, x: str, kind: str) -> str:
        """Casts to another type."""
        return self.node("Cast", x, to=getattr(TensorProto, kind))

    def finished(self, results: list[str]) -> GraphProto:
        """Returns the graph as the library represents it."""
        outputs = [self.outputs.get(name, ValueInfoProto(name=name)) for name in results]
        return helper.make_graph(self.nodes, "graph", self.inputs, outputs, self.constants)

    def model(self, results: list[str]) -> ModelProto:
        """Returns the graph as a file's model."""
        operators = [helper.make_opsetid("", OPSET), helper.make_opsetid(OWN_OPERATORS, 1)]
        return helper.make_model(self.finished(results), opset_imports=operators, ir_version=IR_VERSION)

    def _described(self, name: str, shape: Shape | None, kind: str) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)

    def once(self, key: object, write: Callable[[], str]) -> str:
        """Returns the name of a part that is written on first use."""
        if key not in self._kept:
            self._kept[key] = write()
        return self._kept[key]

    def _keep(self, value: torch.Tensor, name: str) -> str:
        array = value.detach().cpu().contiguous().numpy()
        self.constants.append(numpy_helper.from_array(array, name))
        return name


class LayerGraph(Graph):
    """A graph of the layers of encoder and decoder, whose inputs and outputs are (N, R, D).

    Args:
        quantization: None, or "int8" for 8-bit matrices with a scale for each output; activations are rounded to 8
            bits for each product. The weights use only 7 bits: without VNNI, sums of 8-bit weights overflow the 16
            bits that pairs are added in, and a file may run on any processor.
        around: The outer graph, where this one is the body of a loop in it.
    """

    def __init__(self, config: Any, quantization: str | None = None, around: "LayerGraph | None" = None) -> None:
        super().__init__(around)
        self.config, self.quantization = config, quantization
        self.outermost: LayerGraph = self if around is None else around.outermost
        # The operator has one width for all heads: narrower ones are padded with zeros, which change nothing.
        self.head_width = max(config.d_k, config.d_v)
        self._attention: dict[str, Any] = {
            "domain": OWN_OPERATORS,
            "num_heads": config.num_heads,
            "scale": config.d_k**-0.5,
            "mask_filter_value": torch.finfo(torch.float32).min,
        }

    def body(self) -> "LayerGraph":
        """Returns the body of a loop in this graph."""
        return LayerGraph(self.config, self.quantization, self)

    def linear(self, x: str, weight: torch.Tensor, bias: torch.Tensor | None) -> str:
        """xWᵀ + b, (N, R, D)."""
        if self.quantization is None:
            outputs = self.node("MatMul", x, self.constant(weight.float().mT))
            return outputs if bias is None else self.node("Add", outputs, self.constant(bias.float()))
        rounded, scales = rounded_rows(weight)
        return self._int8_product(x, self.constant(rounded.mT), self.constant(scales), bias)

    def logits(self, x: str, lm_head: nn.Linear) -> str:
        """Section 3.4: the output projection, which may be the embedding."""
        matrix, scales = self.outermost.table(lm_head.weight)
        if not scales:
            outputs = self.node("FusedMatMul", x, matrix, domain=OWN_OPERATORS, transB=1)
            return outputs if lm_head.bias is None else self.node("Add", outputs, self.constant(lm_head.bias.float()))
        outermost = self.outermost  # Where it is transposed once, when the graph is loaded.
        turned = outermost.once((matrix, "turned"), lambda: outermost.node("Transpose", matrix, perm=[1, 0]))
        return self._int8_product(x, turned, scales, lm_head.bias)

    def embed(self, tokens: str, embedding: nn.Embedding, encodings: str) -> str:
        """Sections 3.4 and 3.5: embeddings plus positional encodings."""
        matrix, scales = self.outermost.table(embedding.weight)
        rows, scale = self.node("Gather", matrix, tokens), self.scalar(self.config.d_model**0.5)
        if scales:
            rows, scale_of = self.cast(rows, "FLOAT"), self.node("Gather", scales, tokens)
            scale = self.node("Mul", self.node("Unsqueeze", scale_of, self.number(-1)), scale)
        return self.node("Add", self.node("Mul", rows, scale), encodings)

    def table(self, weight: torch.Tensor) -> tuple[str, str]:
        """Returns a matrix with one row per token, and the scales of its rows if it is rounded; stored once."""
        key = weight.data_ptr(), "table"
        if self.quantization is None:
            return self.once(key, lambda: self.constant(weight.float())), ""
        rounded, scales = rounded_rows(weight)
        matrix = self.once(key, lambda: self.constant(rounded))
        return matrix, self.once((*key, "scales"), lambda: self.constant(scales))

    def _int8_product(self, x: str, matrix: str, scales: str, bias: torch.Tensor | None) -> str:
        more = [] if bias is None else ["", self.constant(bias.float())]
        return self.node("DynamicQuantizeMatMul", x, matrix, scales, *more, domain=OWN_OPERATORS)

    def self_attention(
        self, x: str, layer: EncoderLayer | DecoderLayer, mask_NS: str = "", bias: str = "", past: Sequence[str] = ()
    ) -> tuple[str, list[str]]:
        """Adds the self-attention of a layer.

        Args:
            x: All tokens of the sources, or the newest of each hypothesis.
            mask_NS: 1 on a source's tokens and 0 on padding.
            bias: Added to each token's attention scores, (N, 1, R, L + R); without it each attends to all.
            past: Keys and values, (N, H, L, K), to which those of the tokens are added.

        Returns:
            The states of the tokens, and the keys and values including theirs.
        """
        own = layer.self_attention
        projected = self.linear(x, *self._projection(own.q_proj, own.k_proj, own.v_proj))
        parts = self.outputs_of("Split", projected, outputs=3, axis=-1, num_outputs=3)
        inputs = *parts, "", mask_NS, bias, *past
        attended, *present = self.outputs_of("MultiHeadAttention", *inputs, outputs=3, **self._attention)
        return self._joined(x, attended, own, layer.self_attention_norm), present

    def keys_and_values(self, x: str, layers: Iterable[DecoderLayer]) -> list[list[str]]:
        """Maps the encoder's output to the keys and values of the source for each decoder layer, (N, H, S, K)."""
        modules = [part for layer in layers for part in (layer.cross_attention.k_proj, layer.cross_attention.v_proj)]
        shape = self.number(0, 0, len(modules), self.config.num_heads, self.head_width)
        parts = self.node("Reshape", self.linear(x, *self._projection(*modules)), shape)
        parts = self.node("Transpose", parts, perm=[2, 0, 3, 1, 4])
        each = [self.node("Gather", parts, self.scalar(number)) for number in range(len(modules))]
        return [each[first : first + 2] for first in range(0, len(each), 2)]

    def cross_attention(self, x: str, layer: DecoderLayer, source: list[str], mask_NS: str) -> str:
        """Adds the cross-attention of a decoder layer."""
        cross = layer.cross_attention
        query = self.linear(x, *self._projection(cross.q_proj))
        attended = self.node("MultiHeadAttention", query, *source, "", mask_NS, **self._attention)
        return self._joined(x, attended, cross, layer.cross_attention_norm)

    def feed_forward(self, x: str, layer: EncoderLayer | DecoderLayer) -> str:
        """Adds the feed-forward network of a layer."""
        first, second = layer.feed_forward.w_1, layer.feed_forward.w_2
        activation, attributes = ACTIVATIONS[self.config.activation_function]
        inner = self.node(activation, self.linear(x, first.weight, first.bias), **attributes)
        return self._sublayer(x, self.linear(inner, second.weight, second.bias), layer.feed_forward_norm)

    def _projection(self, *modules: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Joins the projections to queries, keys or values into one: weight and bias."""
        weight = torch.cat([self._filled(module.weight) for module in modules])
        bias = None if modules[0].bias is None else torch.cat([self._filled(module.bias) for module in modules])
        return weight, bias

    def _joined(self, x: str, attended: str, attention: MultiHeadAttention, norm: nn.LayerNorm) -> str:
        """Applies the output projection of all heads."""
        projection = attention.out_proj
        outputs = self.linear(attended, self._filled(projection.weight.mT).mT, projection.bias)
        return self._sublayer(x, outputs, norm)

    def _filled(self, weight: torch.Tensor) -> torch.Tensor:
        """Pads the rows of each head with zeros to the common width."""
        by_head = weight.unflatten(0, (self.config.num_heads, -1))
        filled = by_head.new_zeros(self.config.num_heads, self.head_width, *weight.shape[1:])
        filled[:, : by_head.shape[1]] = by_head.detach()
        return filled.flatten(0, 1)

    def _sublayer(self, x: str, outputs: str, norm: nn.LayerNorm) -> str:
        """LayerNorm(x + Sublayer(x))."""
        weights = self.constant(norm.weight.float()), self.constant(norm.bias.float())
        return self.node("LayerNormalization", self.node("Add", x, outputs), *weights, epsilon=norm.eps)


def rounded_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds rows to 7-bit numbers; returns them and the scale of each."""
    weight = weight.detach().float()
    scales = (weight.abs().amax(1) / 63).clamp(min=torch.finfo(torch.float32).tiny)
    return (weight / scales[:, None]).round().to(torch.int8), scales


def _in_float32(value: object) -> torch.Tensor:
    """Returns integers and booleans in their own type, and floats in float32, whatever torch's default is."""
    numbers = value if isinstance(value, list | tuple) else [value]
    return torch.as_tensor(value, dtype=torch.float32 if any(isinstance(one, float) for one in numbers) else None)
