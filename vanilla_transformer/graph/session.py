"""A model that translates tokens in ONNX Runtime, by its graph."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from vanilla_transformer.graph.known import Settings
from vanilla_transformer.graph.layers import Stored
from vanilla_transformer.graph.messages import KINDS
from vanilla_transformer.graph.search import write_graph
from vanilla_transformer.machine import own_threads

# Numbers in a matrix from which 8 bits are used: smaller ones gain nothing.
INT8_FROM = 1 << 14
# Parameters up to which one thread is as fast as several: what they save on small products they lose waiting.
SMALL = 1 << 24
_KINDS = {np.dtype(np.float32): "FLOAT", np.dtype(np.float16): "FLOAT16", np.dtype(np.uint16): "BFLOAT16"}


class Found(NamedTuple):
    """A hypothesis: its tokens, with the end, and its log-probability over the length penalty, if it is known."""

    tokens: list[int]
    score: float | None


class Session:
    """The graph of a model with its weights, which it holds, and the settings of its search.

    It may be used by several threads at once.

    Args:
        config: The configuration, as in `config.json`.
        weights: By their names, in float32, float16, or bfloat16 as 16-bit integers.
        settings: The settings of the search.
        int8_from: Numbers in a matrix from which it is multiplied in 8 bits; None for none.
        threads: Threads of one call; chosen by the size of the model if None.

    Attributes:
        side_by_side: Number of calls that are best made at a time.
        precision: `float32` or `int8`.
        vocab_size: Entries of the vocabulary.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: Mapping[str, np.ndarray],
        settings: Settings,
        *,
        int8_from: int | None = None,
        threads: int | None = None,
    ) -> None:
        stored = {name: Stored(a.shape, _KINDS[a.dtype], "memory", 0, a.nbytes) for name, a in weights.items()}
        graph = write_graph(config, stored, settings, int8_from=int8_from, fixed=True)
        is_small = sum(weight.size for weight in weights.values()) <= SMALL
        self.precision, self.vocab_size = "float32" if int8_from is None else "int8", int(config["vocab_size"])
        self.settings, self.side_by_side = settings, own_threads() if is_small else 1
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or (1 if is_small else own_threads())
        options.inter_op_num_threads, options.log_severity_level = 1, 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._held = [
            onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, KINDS[stored[name].kind])
            for name, array in weights.items()
        ]
        options.add_external_initializers(list(weights), self._held)
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def translate(self, rows: Sequence[Sequence[int]]) -> list[list[Found]]:
        """Returns the best hypotheses of each row of source tokens."""
        longest = max(map(len, rows))
        tokens = np.full((len(rows), longest), self.settings.padding, np.int64)
        mask = np.zeros((len(rows), longest), np.int64)
        for number, row in enumerate(rows):
            tokens[number, : len(row)], mask[number, : len(row)] = row, 1
        results = self._session.run(None, {"input_ids": tokens, "attention_mask": mask})
        return [
            [Found(tokens[:length].tolist(), float(score)) for tokens, score, length in zip(*each, strict=True)]
            for each in zip(*results, strict=True)
        ]


def int8_from(precision: str) -> int | None:
    """Returns the numbers in a matrix from which it is multiplied in 8 bits; None for none."""
    return None if precision == "float32" else INT8_FROM
