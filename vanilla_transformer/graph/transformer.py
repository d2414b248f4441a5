"""The encoder-decoder as an ONNX graph: its inputs, its encoder, its positions and its output projection.

Shapes in names: N sentences · S source · W hypotheses of a sentence · D d_model · V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vanilla_transformer.graph.builder import Graph
from vanilla_transformer.graph.known import Settings
from vanilla_transformer.graph.layers import SCALES, LayerGraph, Stored

_ENDLESS = 1 << 31


class TransformerGraph(LayerGraph):
    """The graph of a model and of the settings of its search.

    Args:
        settings: The settings of the search.
        fixed: Whether beam, number of results, penalty and limits are always these; otherwise they are inputs with
            these defaults.

    Attributes:
        width, best, exponent: The beam, the number of results, and the exponent of the length penalty.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: Mapping[str, Stored],
        settings: Settings,
        *,
        fixed: bool = False,
    ) -> None:
        super().__init__(config, weights)
        self.settings, self.fixed = settings, fixed
        self.width = self.best = self.exponent = ""
        self.encoder, self.decoder = (
            [f"model.{stack}.layers.{number}" for number in range(config[f"{stack}_layers"])]
            for stack in ("encoder", "decoder")
        )
        tied = config["tie_word_embeddings"]
        self.source_embedding = "model.shared.weight"
        self.target_embedding = self.source_embedding if tied else "model.decoder.embed_tokens.weight"
        self.lm_head = self.source_embedding if tied else "lm_head.weight"
        # Where scores never rise, the returned hypotheses can be certain before all W are finished.
        self.certain = settings.early_stopping == "never" and settings.forced_end is None

    def limits(self, mask_NS: str, beyond: str, most: str) -> str:
        """Returns the tokens that a hypothesis of each sentence may have, (N, 1)."""
        source_N1 = self.cast(self.node("ReduceSum", mask_NS, self.number(1), keepdims=1), "INT64")
        has_most = self.node("Greater", most, self.number(0))
        lengths_N1 = self.node("Where", has_most, most, self.node("Add", source_N1, beyond))
        lengths_N1 = self.node("Min", lengths_N1, self.number(self.settings.positions or _ENDLESS))
        return self.node("Max", lengths_N1, self.number(1))

    def setting(self, name: str, value: float) -> str:
        """Adds an input with its default, or what is fixed."""
        if self.fixed:
            return self.number(value)
        return self.input(name, [1], "FLOAT" if isinstance(value, float) else "INT64", [value])

    def encodings(self, graph: Graph, places: str, stack: str) -> str:
        """Section 3.5: the encodings of successive positions, (positions, D)."""
        if self.settings.positions is not None:
            learned = self.weight(f"model.{stack}.positional_encoding.learned.weight")
            # A block may go on beyond the last position, which no sentence reaches.
            return graph.node("Gather", learned, graph.node("Min", places, graph.scalar(self.settings.positions - 1)))
        width: int = self.config["d_model"]
        exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
        frequencies = self.once("frequencies", lambda: self.constant(np.float32(10000.0) ** -exponents))
        angles = graph.node("Mul", graph.node("Unsqueeze", graph.cast(places, "FLOAT"), graph.number(1)), frequencies)
        pairs = [graph.node("Unsqueeze", graph.node(part, angles), graph.number(2)) for part in ("Sin", "Cos")]
        return graph.node("Reshape", graph.node("Concat", *pairs, axis=2), graph.number(0, width))

    def read(self, tokens_NS: str, mask_NS: str) -> list[list[str]]:
        """Adds the encoder; returns each decoder layer's keys and values of its output. The mask is 32-bit."""
        length = self.node("Squeeze", self.node("Shape", tokens_NS, start=1), self.number(0))
        places_S = self.node("Range", self.scalar(0), length, self.scalar(1))
        places_NS = self.node("CumSum", mask_NS, self.scalar(1), exclusive=1)
        encodings = self.node("Gather", self.encodings(self, places_S, "encoder"), places_NS)
        x = self.embed(tokens_NS, self.source_embedding, encodings)
        for layer in self.encoder:
            x = self.feed_forward(self.encoder_attention(x, layer, mask_NS), layer)
        return self.keys_and_values(x, self.decoder)

    def logits(self, step: LayerGraph, x: str) -> str:
        """Section 3.4: the output projection, which may be the embedding: (n, W, V)."""
        bias, scales = "lm_head.bias", f"{self.lm_head}{SCALES}"
        logits = step.product(x, self.weight(self.lm_head), self.weight(scales) if scales in self.weights else "")
        return step.node("Add", logits, self.weight(bias)) if bias in self.weights else logits
