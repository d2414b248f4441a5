"""The file `translate.onnx` of a model directory: the whole search, with the weights in `model.safetensors`."""

from contextlib import suppress
from pathlib import Path

import numpy as np

from vanilla_transformer.atomic_files import atomic_replace
from vanilla_transformer.graph.search import write_graph
from vanilla_transformer.graph.session import read_model
from vanilla_transformer.graph.settings import Settings
from vanilla_transformer.graph.weights import WEIGHTS, read_header

NAME, SETTINGS = "translate.onnx", "generation_config.json"
CLIENT = """import numpy as np
import onnxruntime
from tokenizers import Tokenizer

onnxruntime.set_default_logger_severity(3)
session = onnxruntime.InferenceSession("translate.onnx")
tokenizer = Tokenizer.from_file("tokenizer.json")
ids = tokenizer.encode("A dog runs.").ids
sequences, scores, lengths = session.run(None, {"input_ids": np.array([ids])})
print(tokenizer.decode(sequences[0, 0, : lengths[0, 0]]), scores[0, 0])
"""


def write_onnx_file(directory: Path) -> Settings:
    """Writes `translate.onnx` into a model directory; returns the settings that are its defaults.

    The file refers to positions in the current file of weights. If that file is replaced by one with another layout,
    or if `generation_config.json` is edited, the ONNX graph finds no hypothesis. If one of them becomes smaller, ONNX
    Runtime does not load the ONNX graph. An existing file with the same content is kept.

    Raises:
        ModelError: The ONNX graph does not support the model or its settings.
    """
    config, stored, settings = read_model(directory, {})
    length, _ = read_header(directory / WEIGHTS)
    unchanged = {
        WEIGHTS: np.fromfile(directory / WEIGHTS, np.uint8, length),
        SETTINGS: np.fromfile(directory / SETTINGS, np.uint8),
    }
    graph, file = write_graph(config, stored, settings, unchanged=unchanged), directory / NAME
    if not file.is_file() or file.read_bytes() != graph:
        file.unlink(missing_ok=True)  # It may be a link to the file of another model.
        with atomic_replace(file) as temporary:
            temporary.write_bytes(graph)
    return settings


def renew(directory: Path) -> str | None:
    """Rewrites `translate.onnx`, or deletes it if the model is not supported, and returns the reason."""
    try:
        write_onnx_file(directory)
    except (OSError, ValueError, KeyError) as error:
        with suppress(FileNotFoundError):
            (directory / NAME).unlink()
        return str(error)
    return None
