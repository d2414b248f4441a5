"""The encoder-decoder as an ONNX graph, whose weights are stored in another file.

Shapes in names: N sentences · R tokens per sentence that are computed together, which are all tokens of a source or
the newest token of each hypothesis · S source · L keys · W hypotheses per sentence · D d_model · H heads · K d_k ·
V vocabulary.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vanilla_transformer.graph.builder import OWN_OPERATORS, Graph, external_message
from vanilla_transformer.graph.settings import Json, Settings
from vanilla_transformer.graph.supported import ACTIVATIONS, head_width

_ENDLESS = 1 << 31
LOWEST = float(np.finfo(np.float32).min)
# The name of an 8-bit matrix plus this suffix is the name of its scales, one per row: the number that 1 represents.
SCALES = ".scales"


class Stored(NamedTuple):
    """Where a weight is stored: its shape, its type, and its position in a file in bytes."""

    shape: tuple[int, ...]
    kind: str
    file: str
    offset: int
    length: int


class TransformerGraph(Graph):
    """The graph of a model, or of the body of a loop in it; inputs and outputs of layers are (N, R, D).

    Computations that only involve weights are done once, when the graph is loaded. An example is joining the
    projections to queries, keys and values.

    Args:
        config: The configuration of a model, as in its `config.json`.
        weights: Where each weight is stored, by its name. A matrix multiplication with an INT8 weight has one scale
            per output and one scale per row of activations, so that no row depends on its neighbours.
        settings: The settings of the search.
        around: The outer graph, if this graph is the body of a loop.
    """

    def __init__(
        self,
        config: Json,
        weights: Mapping[str, Stored],
        settings: Settings,
        around: "TransformerGraph | None" = None,
    ) -> None:
        super().__init__(around)
        self.config, self.weights, self.settings = config, weights, settings
        self.outermost: TransformerGraph = self if around is None else around.outermost
        # The graph in which weights are prepared. ONNX Runtime packs weights only for a loop directly inside of it.
        self.home: TransformerGraph = self if around is None or around.outermost is around else around.home
        self.heads: int = config["num_heads"]
        self.head_width = head_width(config)
        self._attention: dict[str, object] = {
            "num_heads": self.heads,
            "scale": float(self.head_width**-0.5),
            "mask_filter_value": LOWEST,
        }
        self.encoder, self.decoder = (
            [f"model.{stack}.layers.{number}" for number in range(config[f"{stack}_layers"])]
            for stack in ("encoder", "decoder")
        )
        tied = config["tie_word_embeddings"]
        self.source_embedding = "model.shared.weight"
        self.target_embedding = self.source_embedding if tied else "model.decoder.embed_tokens.weight"
        self.lm_head = self.source_embedding if tied else "lm_head.weight"

    def body(self) -> "TransformerGraph":
        """Returns a new graph, for the body of a loop in this graph."""
        return TransformerGraph(self.config, self.weights, self.settings, self)

    def weight(self, name: str) -> str:
        """Returns a stored weight, in float32 or int8."""
        return self.outermost.once(("weight", name), lambda: self.outermost._stored(name))

    def _stored(self, name: str) -> str:
        stored = self.weights[name]
        self.initializers.append(external_message(name, *stored))
        return name if stored.kind in ("FLOAT", "INT8") else self.cast(name, "FLOAT")

    def unchanged(self, file: str, header: np.ndarray) -> str:
        """Returns True if a file begins with these bytes."""
        name = f"header of {file}"
        self.initializers.append(external_message(name, header.shape, "UINT8", file, 0, len(header)))
        pair = (self.cast(part, "INT32") for part in (name, self.constant(header)))
        return self.cast(self.node("ReduceMin", self.cast(self.node("Equal", *pair), "INT32"), keepdims=0), "BOOL")

    def linear(self, x: str, *names: str) -> str:
        """Returns xWᵀ + b of one linear layer, or of several layers, joined along the last axis, (N, R, D)."""
        weights, scales, biases = (
            [f"{name}.{part}" for name in names if f"{name}.{part}" in self.weights]
            for part in ("weight", f"weight{SCALES}", "bias")
        )
        matrix, scale, bias = (self.home._joined(some) if some else "" for some in (weights, scales, biases))
        outputs = self.product(x, matrix, scale)
        return self.node("Add", outputs, bias) if bias else outputs

    def product(self, x: str, matrix: str, scales: str = "") -> str:
        """Returns xWᵀ, computed in float32, or in 8 bits if the matrix has scales, (N, R, D)."""
        home = self.home
        turned = home.once((matrix, "turned"), lambda: home.node("Transpose", matrix, perm=[1, 0]))
        if not scales:
            return self.node("MatMul", x, turned)
        # A row of zeros is first divided by zero and finally multiplied by zero.
        largest = self.node("ReduceMax", self.node("Abs", x), self.number(-1), keepdims=1)
        step, zero = home.scalar(1 / 127), home.once("zero", lambda: home.constant(np.array(128, np.uint8)))
        rows = self.node("QuantizeLinear", self.node("Div", x, largest), step, zero)
        return self.node("Mul", self.own("MatMulIntegerToFloat", rows, turned, step, scales, zero), largest)

    def _joined(self, names: Sequence[str]) -> str:
        """Returns weights joined along their first axis; equal requests share one result."""

        def join() -> str:
            parts = [self.weight(name) for name in names]
            return parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=0)

        return self.once(("joined", *names), join)

    def embed(self, tokens: str, embedding: str, encodings: str) -> str:
        """Sections 3.4 and 3.5: embeddings times √d_model, plus positional encodings."""
        rows = self.node("Gather", self.weight(embedding), tokens)
        scale = self.scalar(float(self.config["d_model"] ** 0.5))
        if (scales := f"{embedding}{SCALES}") in self.weights:
            scale_of = self.node("Mul", self.node("Gather", self.weight(scales), tokens), scale)
            rows, scale = self.cast(rows, "FLOAT"), self.node("Unsqueeze", scale_of, self.number(-1))
        return self.node("Add", self.node("Mul", rows, scale), encodings)

    def encoder_attention(self, x: str, layer: str, mask_NS: str) -> str:
        """Adds the self-attention of an encoder layer; the mask is 1 on tokens and 0 on padding."""
        projected = self._projected(x, layer)
        parts = self.outputs_of("Split", projected, outputs=3, axis=-1, num_outputs=3)
        attended = self.own("MultiHeadAttention", *parts, "", mask_NS, **self._attention)
        return self._attended(x, attended, layer, "self_attention")

    def decoder_attention(self, x: str, layer: str, past: Sequence[str], bias: str) -> tuple[str, list[str]]:
        """Adds the self-attention of a decoder layer to tokens and their ancestors.

        Args:
            x: The newest token of each hypothesis.
            layer: The name of the layer.
            past: Keys and values of earlier tokens, (N, H, L, K).
            bias: Added to the attention scores, (N, 1, R, L + R); "" if each token attends to all earlier tokens.

        Returns:
            The states of the tokens, and the keys and values of the earlier and the newest tokens.
        """
        parts = self.outputs_of("Split", self._projected(x, layer), outputs=3, axis=-1, num_outputs=3)
        inputs = *parts, "", "", bias, *past
        attended, *present = self.outputs_of(
            "MultiHeadAttention", *inputs, outputs=3, domain=OWN_OPERATORS, **self._attention
        )
        return self._attended(x, attended, layer, "self_attention"), present

    def _projected(self, x: str, layer: str) -> str:
        return self.linear(x, *(f"{layer}.self_attention.{part}_proj" for part in "qkv"))

    def keys_and_values(self, x: str, layers: Iterable[str]) -> list[list[str]]:
        """Converts the encoder's output to keys and values for each decoder layer, (N, H, S, K)."""
        found = []
        for layer in layers:
            names = [f"{layer}.cross_attention.{part}_proj" for part in "kv"]
            shape = self.number(0, 0, 2, self.heads, self.head_width)
            by_head = self.node("Reshape", self.linear(x, *names), shape)
            both = self.node("Transpose", by_head, perm=[2, 0, 3, 1, 4])
            found.append([self.node("Gather", both, self.scalar(number)) for number in range(2)])
        return found

    def cross_attention(self, x: str, layer: str, source: Sequence[str], mask_NS: str) -> str:
        """Adds the cross-attention of a decoder layer."""
        query = self.linear(x, f"{layer}.cross_attention.q_proj")
        attended = self.own("MultiHeadAttention", query, *source, "", mask_NS, **self._attention)
        return self._attended(x, attended, layer, "cross_attention")

    def feed_forward(self, x: str, layer: str) -> str:
        """Adds the feed-forward network of a layer."""
        activation, domain, attributes = ACTIVATIONS[self.config["activation_function"]]
        inner = self.linear(x, f"{layer}.feed_forward.w_1")
        inner = self.node(activation, inner, domain=domain, **attributes)
        return self._sublayer(x, self.linear(inner, f"{layer}.feed_forward.w_2"), f"{layer}.feed_forward_norm")

    def _attended(self, x: str, attended: str, layer: str, attention: str) -> str:
        """Applies the output projection of all heads."""
        name = f"{layer}.{attention}"
        return self._sublayer(x, self.linear(attended, f"{name}.out_proj"), f"{name}_norm")

    def _sublayer(self, x: str, outputs: str, norm: str) -> str:
        """Returns LayerNorm(x + Sublayer(x))."""
        weights = self.weight(f"{norm}.weight"), self.weight(f"{norm}.bias")
        epsilon = float(self.config["layer_norm_eps"])
        return self.node("LayerNormalization", self.node("Add", x, outputs), *weights, epsilon=epsilon)

    def limits(self, mask_NS: str, beyond: str, max_new_tokens: str) -> str:
        """Returns the maximum number of tokens per hypothesis, (N, 1)."""
        source_N1 = self.cast(self.node("ReduceSum", mask_NS, self.number(1), keepdims=1), "INT64")
        is_given = self.node("Greater", max_new_tokens, self.number(0))
        lengths_N1 = self.node("Where", is_given, max_new_tokens, self.node("Add", source_N1, beyond))
        lengths_N1 = self.node("Min", lengths_N1, self.number(self.settings.max_positions or _ENDLESS))
        return self.node("Max", lengths_N1, self.number(1))

    def encodings(self, places: str, stack: str) -> str:
        """Section 3.5: the encodings of successive positions, (positions, D)."""
        if self.settings.max_positions is not None:
            learned = self.weight(f"model.{stack}.positional_encoding.learned.weight")
            # The last block may have steps beyond the last position, which no sentence uses.
            return self.node("Gather", learned, self.node("Min", places, self.scalar(self.settings.max_positions - 1)))
        width, outermost = self.config["d_model"], self.outermost
        exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
        frequencies = outermost.once("frequencies", lambda: outermost.constant(np.float32(10000.0) ** -exponents))
        angles = self.node("Mul", self.node("Unsqueeze", self.cast(places, "FLOAT"), self.number(1)), frequencies)
        pairs = [self.node("Unsqueeze", self.node(part, angles), self.number(2)) for part in ("Sin", "Cos")]
        return self.node("Reshape", self.node("Concat", *pairs, axis=2), self.number(0, width))

    def read(self, tokens_NS: str, mask_NS: str) -> list[list[str]]:
        """Adds the encoder; returns the keys and values of its output for each decoder layer. The mask is in int32."""
        length = self.node("Squeeze", self.node("Shape", tokens_NS, start=1), self.number(0))
        places_S = self.node("Range", self.scalar(0), length, self.scalar(1))
        places_NS = self.node("CumSum", mask_NS, self.scalar(1), exclusive=1)
        encodings = self.node("Gather", self.encodings(places_S, "encoder"), places_NS)
        x = self.embed(tokens_NS, self.source_embedding, encodings)
        for layer in self.encoder:
            x = self.feed_forward(self.encoder_attention(x, layer, mask_NS), layer)
        return self.keys_and_values(x, self.decoder)

    def logits(self, x: str) -> str:
        """Section 3.4: the output projection, which may be the embedding: (n, W, V)."""
        bias, scales = "lm_head.bias", f"{self.lm_head}{SCALES}"
        logits = self.product(x, self.weight(self.lm_head), self.weight(scales) if scales in self.weights else "")
        return self.node("Add", logits, self.weight(bias)) if bias in self.weights else logits
