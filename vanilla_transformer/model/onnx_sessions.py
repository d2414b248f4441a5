"""Encoder and decoder of small models for `generate` as sessions of ONNX Runtime, where that is installed.

A step of a small model is some 60 small operations, whose calls take longer than their arithmetic. ONNX Runtime makes
each of them at a fraction of that cost, and all of a step in one call. The graphs are written here from the weights,
which takes milliseconds; they compute what `PackedEncoder` and `PackedDecoder` do, in float32, on one thread.

Shapes in names: N sentences · W hypotheses of a sentence · R = N·W rows · P tokens of a prompt · S source ·
L tokens so far · D d_model · H heads · K d_k · V vocabulary.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .onnx_graphs import OWN_OPERATORS, Graph, engine
from .packed_decoder import PackedDecoder, decoder_stack
from .packed_encoder import PackedEncoder, SourceEmbedding
from .packed_weights import PositionTable

# A session keeps a copy of the weights, and multiplies large ones no faster than torch does: numbers of a stack, and
# numbers times rows. Torch divides the rows among its threads, a session does not.
LARGEST_STACK = 1 << 23
MULTIPLICATIONS = 1 << 26
_CACHE = ("key", "value")


def encodes_in_session(model: Any, dtype: torch.dtype, quantization: str | None, rows: int) -> bool:
    """Whether a session is the fastest way to encode so many tokens of all sentences together."""
    layers = model.model.encoder.layers
    return _suits(model.config, layers, dtype, quantization) and few_enough(encoder_size(model), rows)


def decodes_in_session(model: Any, dtype: torch.dtype, quantization: str | None, rows: int) -> bool:
    """Whether a session is the fastest way to advance so many hypotheses of all sentences together."""
    config, layers = model.config, decoder_stack(model).layers
    if not config.is_encoder_decoder:
        return False
    return _suits(config, layers, dtype, quantization) and few_enough(decoder_size(model), rows)


def encoder_size(model: Any) -> int:
    """Numbers that a token is multiplied with in the encoder."""
    config, layers = model.config, len(model.model.encoder.layers)
    return layers * (4 * config.d_model * config.num_heads * config.d_k + 2 * config.d_model * config.d_ff)


def decoder_size(model: Any) -> int:
    """Numbers that a token is multiplied with in the decoder."""
    config, layers = model.config, len(decoder_stack(model).layers)
    size = layers * (6 * config.d_model * config.num_heads * config.d_k + 2 * config.d_model * config.d_ff)
    return size + config.vocab_size * config.d_model


def few_enough(size: int, rows: int) -> bool:
    """Whether a session multiplies so many rows with so many numbers fastest."""
    return (
        size <= LARGEST_STACK
        and size * rows * min(torch.get_num_threads(), 2) <= MULTIPLICATIONS
        and engine() is not None
    )


def _suits(config: Any, layers: Any, dtype: torch.dtype, quantization: str | None) -> bool:
    if dtype != torch.float32 or quantization is not None or config.d_k != config.d_v:
        return False
    if layers[0].feed_forward.w_1.weight.device.type != "cpu":
        return False
    return all(type(layer.feed_forward.activation) is nn.ReLU for layer in layers)


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
        graph = Graph(model.config.num_heads)
        x = graph.input("x", ["N", "S", model.config.d_model])
        mask = graph.input("mask", ["N", "S"], "INT32")
        for layer in model.model.encoder.layers:
            own = layer.self_attention
            attended = graph.attend(*graph.project(x, own.q_proj, own.k_proj, own.v_proj), "", mask)
            x = graph.sublayer(x, graph.linear(attended, own.out_proj), layer.self_attention_norm)
            x = graph.feed_forward(x, layer)
        self.session = graph.session([x])

    def __call__(
        self,
        input_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(N, S) token ids, or embeddings (N, S, D), to (N, S, D)."""
        x_NSD = self.embed(input_ids, inputs_embeds, attention_mask).float()
        mask_NS = _mask(attention_mask, x_NSD)
        return torch.from_numpy(self.session.run(None, {"x": x_NSD.detach().numpy(), "mask": mask_NS})[0])


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
        config, graph = self.config, Graph(self.config.num_heads)
        states = graph.input("states", ["N", "S", config.d_model])
        shape = graph.constant(torch.tensor([0, 0, config.num_heads, config.d_k]))
        found: list[str] = []
        for layer in self.stack.layers:
            for projection in (layer.cross_attention.k_proj, layer.cross_attention.v_proj):
                split = graph.node("Reshape", graph.linear(states, projection), shape)
                found.append(graph.node("Transpose", split, perm=[0, 2, 1, 3]))
        return graph.session(found)

    def _step_session(self, lm_head: Any) -> Any:
        """A token more for each row: it continues the row of the step before that `rows` names."""
        config, graph = self.config, Graph(self.config.num_heads)
        x = graph.input("x", ["R", 1, config.d_model])
        rows = graph.input("rows", ["R"], "INT64")
        by_sentence = graph.input("by_sentence", [3], "INT64")
        by_row = graph.constant(torch.tensor([-1, 1, self.width]))
        mask = graph.input("mask", ["N", "S"], "INT32")
        found: list[str] = []
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
                domain=OWN_OPERATORS,
                num_heads=config.num_heads,
            )
            found += present
            x = graph.sublayer(x, graph.linear(attended, own.out_proj), layer.self_attention_norm)
            query = graph.node("Reshape", graph.linear(x, cross.q_proj), by_sentence)
            attended = graph.node("Reshape", graph.attend(query, *source, "", mask), by_row)
            x = graph.sublayer(x, graph.linear(attended, cross.out_proj), layer.cross_attention_norm)
            x = graph.feed_forward(x, layer)
        return graph.session([graph.linear(x, lm_head), *found])

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
        self.sources = dict(zip(names, decoder.of_source.run(None, {"states": states}), strict=True))
        self.sources["mask"] = _mask(mask_NS, encoded_NSD)
        nothing = torch.empty(self.sentences, config.num_heads, 0, config.d_k)
        self.past = dict.fromkeys(decoder.cached, nothing.numpy())
        # The row of the last step that each row of the next one continues.
        self.rows = torch.arange(self.sentences)

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
        logits, *past = decoder.of_step.run(None, inputs | self.sources | self.past)
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


__all__ = [
    "SessionCache",
    "SessionDecoder",
    "SessionEncoder",
    "decoder_size",
    "decodes_in_session",
    "encoder_size",
    "encodes_in_session",
    "few_enough",
]
