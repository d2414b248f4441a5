"""Encoder and decoder of small models for `generate` as sessions of ONNX Runtime, where that is installed.

A step of a small model is some 60 small operations, whose calls take longer than their arithmetic. ONNX Runtime makes
each of them at a fraction of that cost, and all of a step in one call. The graphs are written here from the weights,
which takes milliseconds; they compute what `PackedEncoder` and `PackedDecoder` do, in float32, on one thread.

Shapes in names: N sentences · W hypotheses of a sentence · R = N·W rows · P tokens of a prompt · S source ·
L tokens so far · D d_model · H heads · K d_k · V vocabulary.
"""

from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .packed_decoder import PackedDecoder, decoder_stack
from .packed_encoder import PackedEncoder, SourceEmbedding
from .packed_weights import PositionTable

# A session keeps a copy of the weights, and multiplies large ones no faster than torch does: numbers of a stack, and
# numbers times rows. Torch divides the rows among its threads, a session does not.
LARGEST_STACK = 1 << 23
MULTIPLICATIONS = 1 << 26
# The version that the graphs were tried with first.
OLDEST_VERSION = (1, 31)
_OPSET, _IR_VERSION, _OWN_OPERATORS = 20, 10, "com.microsoft"
_CACHE = ("key", "value")


@cache
def _engine() -> tuple[Any, Any] | None:
    """The modules `onnx` and `onnxruntime`, if both are there and new enough."""
    try:
        onnx, onnxruntime = import_module("onnx"), import_module("onnxruntime")
    except ImportError:
        return None
    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    return (onnx, onnxruntime) if version >= OLDEST_VERSION else None


def encodes_in_session(model: Any, dtype: torch.dtype, quantization: str | None, rows: int) -> bool:
    """Whether a session is the fastest way to encode so many tokens of all sentences together."""
    config, layers = model.config, model.model.encoder.layers
    size = len(layers) * (4 * config.d_model * config.num_heads * config.d_k + 2 * config.d_model * config.d_ff)
    return _fits(config, layers, dtype, quantization, size, rows)


def decodes_in_session(model: Any, dtype: torch.dtype, quantization: str | None, rows: int) -> bool:
    """Whether a session is the fastest way to advance so many hypotheses of all sentences together."""
    config, layers = model.config, decoder_stack(model).layers
    if not config.is_encoder_decoder:
        return False
    size = len(layers) * (6 * config.d_model * config.num_heads * config.d_k + 2 * config.d_model * config.d_ff)
    return _fits(config, layers, dtype, quantization, size + config.vocab_size * config.d_model, rows)


def _fits(config: Any, layers: Any, dtype: torch.dtype, quantization: str | None, size: int, rows: int) -> bool:
    if dtype != torch.float32 or quantization is not None or config.d_k != config.d_v or size > LARGEST_STACK:
        return False
    if size * rows * min(torch.get_num_threads(), 2) > MULTIPLICATIONS:
        return False
    if layers[0].feed_forward.w_1.weight.device.type != "cpu":
        return False
    return all(type(layer.feed_forward.activation) is nn.ReLU for layer in layers) and _engine() is not None


class SessionEncoder:
    """The encoder's layers in a session, in the place of a `PackedEncoder`.

    Args:
        model: As of `PackedEncoder`; `encodes_in_session` says for which.
        dtype: float32.
        quantization: None.
    """

    weights = staticmethod(PackedEncoder.weights)

    def __init__(self, model: Any, dtype: torch.dtype, quantization: str | None = None) -> None:
        self.embed = SourceEmbedding(model)
        graph = _Graph(model.config)
        x = graph.input("x", ["N", "S", model.config.d_model])
        mask = graph.input("mask", ["N", "S"], "INT32")
        for layer in model.model.encoder.layers:
            own = layer.self_attention
            attended = graph.attend(*graph.project(x, own.q_proj, own.k_proj, own.v_proj), "", mask)
            x = graph.sublayer(x, graph.linear(attended, own.out_proj), layer.self_attention_norm)
            x = graph.feed_forward(x, layer)
        self.session = graph.session({x: "states"})

    def __call__(
        self,
        input_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(N, S) token ids, or embeddings (N, S, D), to (N, S, D)."""
        x_NSD = self.embed(input_ids, inputs_embeds, attention_mask).float()
        mask_NS = _mask(attention_mask, x_NSD)
        return torch.from_numpy(self.session.run(["states"], {"x": x_NSD.detach().numpy(), "mask": mask_NS})[0])


class SessionDecoder:
    """The decoder in two sessions, of what it makes of a source and of a step, in the place of a `PackedDecoder`.

    Args:
        model: As of `PackedDecoder`; `decodes_in_session` says for which.
        dtype: float32.
        quantization: None.
    """

    weights = staticmethod(PackedDecoder.weights)

    def __init__(self, model: Any, dtype: torch.dtype, quantization: str | None = None) -> None:
        self.config, self.stack = model.config, decoder_stack(model)
        self.scale, self.width = self.config.d_model**0.5, self.config.num_heads * self.config.d_k
        self.positions = PositionTable(self.stack.positional_encoding, torch.float32)
        self.cached = [f"{kind}{number}" for number in range(len(self.stack.layers)) for kind in _CACHE]
        self.of_source = self._source_session()
        self.of_step = self._step_session(model.lm_head)

    def _source_session(self) -> Any:
        """The encoder's output to each layer's keys and values of the source, (N, H, S, K)."""
        config, graph = self.config, _Graph(self.config)
        states = graph.input("states", ["N", "S", config.d_model])
        shape = graph.constant(torch.tensor([0, 0, config.num_heads, config.d_k]))
        found: dict[str, str] = {}
        for number, layer in enumerate(self.stack.layers):
            cross = layer.cross_attention
            for kind, projection in zip(_CACHE, (cross.k_proj, cross.v_proj), strict=True):
                split = graph.node("Reshape", graph.linear(states, projection), shape)
                found[graph.node("Transpose", split, perm=[0, 2, 1, 3])] = f"source_{kind}{number}"
        return graph.session(found)

    def _step_session(self, lm_head: Any) -> Any:
        """A token more for each row: it continues the row of the step before that `rows` names."""
        config, graph = self.config, _Graph(self.config)
        x = graph.input("x", ["R", 1, config.d_model])
        rows = graph.input("rows", ["R"], "INT64")
        by_sentence = graph.input("by_sentence", [3], "INT64")
        by_row = graph.constant(torch.tensor([-1, 1, self.width]))
        mask = graph.input("mask", ["N", "S"], "INT32")
        found: dict[str, str] = {}
        for number, layer in enumerate(self.stack.layers):
            own, cross = layer.self_attention, layer.cross_attention
            past, source = (
                [graph.input(f"{of}{kind}{number}", [count, config.num_heads, length, config.d_k]) for kind in _CACHE]
                for of, count, length in (("", "before", "past"), ("source_", "N", "S"))
            )
            past = [graph.node("Gather", part, rows) for part in past]
            attended, *present = graph.node(
                "MultiHeadAttention",
                *graph.project(x, own.q_proj, own.k_proj, own.v_proj),
                *("", "", "", *past),
                outputs=3,
                domain=_OWN_OPERATORS,
                num_heads=config.num_heads,
            )
            found |= {name: f"new_{kind}{number}" for name, kind in zip(present, _CACHE, strict=True)}
            x = graph.sublayer(x, graph.linear(attended, own.out_proj), layer.self_attention_norm)
            query = graph.node("Reshape", graph.linear(x, cross.q_proj), by_sentence)
            attended = graph.node("Reshape", graph.attend(query, *source, "", mask), by_row)
            x = graph.sublayer(x, graph.linear(attended, cross.out_proj), layer.cross_attention_norm)
            x = graph.feed_forward(x, layer)
        return graph.session({graph.linear(x, lm_head): "logits", **found})

    def start(self, encoded_NSD: torch.Tensor, source_mask_NS: torch.Tensor | None) -> "SessionCache":
        """The cache before the first step; see `PackedDecoder.start`."""
        return SessionCache(self, encoded_NSD.detach().float(), source_mask_NS)


class SessionCache:
    """Keys and values of a batch's sources and of its running hypotheses, a row for each of these."""

    def __init__(self, decoder: SessionDecoder, encoded_NSD: torch.Tensor, mask_NS: torch.Tensor | None) -> None:
        self.decoder, self.sentences, self.position = decoder, len(encoded_NSD), 0
        config = decoder.config
        names = [f"source_{name}" for name in decoder.cached]
        states = encoded_NSD.contiguous().numpy()
        self.sources = dict(zip(names, decoder.of_source.run(names, {"states": states}), strict=True))
        self.sources["mask"] = _mask(mask_NS, encoded_NSD)
        nothing = torch.empty(self.sentences, config.num_heads, 0, config.d_k)
        self.past = dict.fromkeys(decoder.cached, nothing.numpy())
        # The row of the last step that each row of the next one continues.
        self.rows = torch.arange(self.sentences)
        self._outputs = ["logits", *(f"new_{name}" for name in decoder.cached)]

    def read(self, tokens_NP: torch.Tensor) -> None:
        """Reads the next tokens of each sentence, which have one hypothesis still."""
        for tokens_N1 in tokens_NP.split(1, 1):
            self.step(tokens_N1)

    def step(self, tokens_NW: torch.Tensor) -> torch.Tensor:
        """The newest token of each hypothesis to logits of the next, (sentences · hypotheses, vocabulary)."""
        decoder, width = self.decoder, tokens_NW.shape[1]
        embedded = F.embedding(tokens_NW.reshape(-1, 1), decoder.stack.embed_tokens.weight).float()
        x_R1D = embedded * decoder.scale + decoder.positions.of(self.position, embedded.device)
        if len(self.rows) != tokens_NW.numel():
            self.rows = self.rows.repeat_interleave(width)  # Until now there was one hypothesis.
        shape = torch.tensor([self.sentences, width, decoder.width])
        inputs = {
            "x": x_R1D.detach().numpy(),
            "rows": self.rows.numpy(),
            "by_sentence": shape.numpy(),
        }
        logits, *past = decoder.of_step.run(self._outputs, inputs | self.sources | self.past)
        self.past = dict(zip(decoder.cached, past, strict=True))
        self.rows = torch.arange(len(self.rows))
        self.position += 1
        return torch.from_numpy(logits).squeeze(1)

    def reorder(self, parents_NW: torch.Tensor) -> None:
        """Makes each hypothesis the child of one of its sentence."""
        self.rows = self.rows.view(self.sentences, -1).gather(1, parents_NW).flatten()

    def select(self, sentences: torch.Tensor) -> None:
        """Drops all other sentences; `sentences` are indices."""
        self.rows = self.rows.view(self.sentences, -1)[sentences].flatten()
        kept = sentences.numpy()
        self.sources = {name: part[kept] for name, part in self.sources.items()}
        self.sentences = len(kept)

    def keys_and_values(self) -> list[tuple[torch.Tensor, ...]]:
        """Each layer's keys and values of the hypotheses' tokens and of the source, (rows or sentences, H, L, K)."""
        found = []
        for number in range(len(self.decoder.stack.layers)):
            own = [self.past[f"{kind}{number}"] for kind in _CACHE]
            source = [self.sources[f"source_{kind}{number}"] for kind in _CACHE]
            found.append(tuple(torch.from_numpy(part) for part in (*own, *source)))
        return found


def _mask(mask_NS: torch.Tensor | None, states_NSD: torch.Tensor) -> Any:
    """1 on tokens, 0 on padding, as an array."""
    mask_NS = torch.ones(states_NSD.shape[:2]) if mask_NS is None else mask_NS
    return mask_NS.bool().int().numpy()


class _Graph:
    """A graph while it is written: each method adds nodes and returns the name of what they compute."""

    def __init__(self, config: Any) -> None:
        engine = _engine()
        assert engine is not None
        self.onnx, self.runtime = engine
        self.heads = config.num_heads
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.constants: list[Any] = []

    def input(self, name: str, shape: list[Any], kind: str = "FLOAT") -> str:
        helper, kinds = self.onnx.helper, self.onnx.TensorProto
        self.inputs.append(helper.make_tensor_value_info(name, getattr(kinds, kind), shape))
        return name

    def constant(self, value: torch.Tensor) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(value.detach().contiguous().numpy(), name))
        return name

    def node(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """One node; its output's name, or those of several."""
        names = [f"{operator}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def linear(self, x: str, *modules: Any) -> str:
        """xWᵀ + b, of several linear layers concatenated."""
        outputs = self.node("MatMul", x, self.constant(torch.cat([module.weight for module in modules]).float().mT))
        if modules[0].bias is None:
            return outputs
        return self.node("Add", outputs, self.constant(torch.cat([module.bias for module in modules]).float()))

    def project(self, x: str, *modules: Any) -> list[str]:
        """Several linear layers of equal widths as one product, each one's output apart."""
        return self.node("Split", self.linear(x, *modules), outputs=len(modules), axis=-1, num_outputs=len(modules))

    def attend(self, *inputs: str) -> str:
        """Section 3.2.1 for all heads; 1 / √d_k is the operator's own."""
        least = torch.finfo(torch.float32).min
        attributes = {"num_heads": self.heads, "mask_filter_value": least}
        return self.node("MultiHeadAttention", *inputs, domain=_OWN_OPERATORS, **attributes)

    def sublayer(self, x: str, outputs: str, norm: nn.LayerNorm) -> str:
        """LayerNorm(x + Sublayer(x))."""
        weights = self.constant(norm.weight.float()), self.constant(norm.bias.float())
        return self.node("LayerNormalization", self.node("Add", x, outputs), *weights, epsilon=norm.eps)

    def feed_forward(self, x: str, layer: Any) -> str:
        inner = self.node("Relu", self.linear(x, layer.feed_forward.w_1))
        return self.sublayer(x, self.linear(inner, layer.feed_forward.w_2), layer.feed_forward_norm)

    def session(self, outputs: dict[str, str]) -> Any:
        """The graph ready to run; `outputs` are its results and their names."""
        helper, kind = self.onnx.helper, self.onnx.TensorProto.FLOAT
        for node in self.nodes:
            for names in (node.input, node.output):
                names[:] = [outputs.get(name, name) for name in names]
        found = [helper.make_tensor_value_info(name, kind, None) for name in outputs.values()]
        graph = helper.make_graph(self.nodes, "graph", self.inputs, found, self.constants)
        operators = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_OWN_OPERATORS, 1)]
        model = helper.make_model(graph, opset_imports=operators, ir_version=_IR_VERSION)
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        # What there is to fuse costs more to look for at each building than it saves.
        options.graph_optimization_level = self.runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        return self.runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


__all__ = ["SessionCache", "SessionDecoder", "SessionEncoder", "decodes_in_session", "encodes_in_session"]
