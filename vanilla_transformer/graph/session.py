"""Translation of tokens by an ONNX graph in ONNX Runtime."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

from vanilla_transformer.errors import ModelError
from vanilla_transformer.graph.builder import KINDS
from vanilla_transformer.graph.search import write_graph
from vanilla_transformer.graph.settings import Json, Settings
from vanilla_transformer.graph.supported import first_unsupported
from vanilla_transformer.graph.transformer import Stored
from vanilla_transformer.graph.weights import NUMPY, in_float32, read, rounded, stored_weights
from vanilla_transformer.machine import own_threads

# The d_model from which on 8 bits are faster. Below, quantizing a row takes as long as its multiplication saves.
INT8_FROM_WIDTH = 256
# The number of parameters up to which one thread is as fast as several, because threads would wait for each other.
MAX_PARAMETERS_OF_ONE_THREAD = 1 << 24
_KINDS = {np.dtype(kind): name for name, kind in NUMPY.items()}


class Found(NamedTuple):
    """A hypothesis: its tokens, the end token included, and its log-probability divided by the length penalty."""

    tokens: list[int]
    score: float | None  # None for greedy search by `generate`.


class Session:
    """The ONNX graph of a model and its search, with a copy of the weights. Several threads may use it at once.

    Args:
        config: The configuration, as in `config.json`.
        weights: The weights and their names, in float32, in float16, or in bfloat16 as 16-bit integers.
        settings: The settings of the search.
        precision: `float32`, `int8`, or `auto` for the faster of the two for one sentence.

    Attributes:
        side_by_side: The best number of simultaneous calls.
        precision: `float32` or `int8`.
        vocab_size: The size of the vocabulary.
    """

    device = "cpu"

    def __init__(
        self,
        config: Json,
        weights: Iterable[tuple[str, np.ndarray]],
        settings: Settings,
        *,
        precision: str = "float32",
    ) -> None:
        in_8_bits = precision == "int8" or (precision == "auto" and config["d_model"] >= INT8_FROM_WIDTH)
        arrays = dict(rounded(config, weights) if in_8_bits else weights)
        stored = {name: Stored(a.shape, _KINDS[a.dtype], "memory", 0, a.nbytes) for name, a in arrays.items()}
        graph = write_graph(config, stored, settings)
        is_small = sum(array.size for array in arrays.values()) <= MAX_PARAMETERS_OF_ONE_THREAD
        in_8_bits = any(array.dtype == np.int8 for array in arrays.values())
        self.precision, self.vocab_size = "int8" if in_8_bits else "float32", int(config["vocab_size"])
        self.padding, self.side_by_side = settings.padding, own_threads() if is_small else 1
        self.num_beams, self.num_return_sequences = settings.num_beams, settings.num_return_sequences
        self.max_positions = settings.max_positions
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1 if is_small else own_threads()
        options.inter_op_num_threads, options.log_severity_level = 1, 3
        # The arena's lock costs a small model a seventh of its time. A large model allocates so much that it pays off.
        options.enable_cpu_mem_arena = not is_small
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._held = [
            onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, KINDS[stored[name].kind])
            for name, array in arrays.items()
        ]
        options.add_external_initializers(list(arrays), self._held)
        with _named_errors("the installed ONNX Runtime ({})"):
            self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def search(self, rows: Sequence[Sequence[int]]) -> list[list[Found]]:
        """Returns the best hypotheses for the source tokens of each sentence."""
        longest = max(map(len, rows))
        tokens = np.full((len(rows), longest), self.padding, np.int64)
        mask = np.zeros((len(rows), longest), np.int64)
        for number, row in enumerate(rows):
            tokens[number, : len(row)], mask[number, : len(row)] = row, 1
        with _named_errors("ONNX Runtime could not translate ({}). A smaller --batch-tokens needs less memory."):
            results = self._session.run(None, {"input_ids": tokens, "attention_mask": mask})
        return [
            [Found(tokens[:length].tolist(), float(score)) for tokens, score, length in zip(*each, strict=True)]
            for each in zip(*results, strict=True)
        ]


@contextmanager
def _named_errors(message: str) -> Iterator[None]:
    """Turns an error of ONNX Runtime into a ModelError. Its classes have no common base."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(message.format(f"{type(error).__name__}: {reason}")) from error


def open_session(directory: Path, call: Json, precision: str) -> Session:
    """Returns the session of a model directory, which is read without torch and transformers.

    Args:
        directory: The model directory.
        call: Settings of the search, as arguments of `generate`; the model's own settings apply to all others.
        precision: `float32`, `int8` or `auto`.

    Raises:
        ModelError: The ONNX graph does not support the model or a setting, or the files are damaged.
    """
    try:
        config, stored, settings = read_model(directory, call)
        if precision == "float32" and any(weight.kind == "INT8" for weight in stored.values()):
            raise ModelError("float32 with weights in 8 bits")
        return Session(config, finite(read(directory, stored)), settings, precision=precision)
    except ModelError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"a damaged file: {type(error).__name__}: {error}") from error


def read_model(directory: Path, call: Json) -> tuple[Json, dict[str, Stored], Settings]:
    """Returns the configuration, the weights' positions and the settings of a directory; see `open_session`."""
    files = directory / "config.json", directory / "generation_config.json"
    config, own = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    stored = stored_weights(directory)
    reason = first_unsupported(config, {name: weight.shape for name, weight in stored.items()})
    if reason is not None:
        raise ModelError(reason)
    return config, stored, Settings.of(config, own, call)


def finite(weights: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the weights; raises ModelError if one contains NaN or infinity."""
    for name, weight in weights:
        numbers = in_float32(weight).ravel()
        if not np.isfinite(np.dot(numbers, numbers)):
            raise ModelError(f"{name}, which holds NaN or infinity")
        yield name, weight
