"""`translate.onnx` beside `model.safetensors`: the whole search, as a file that points at weights and holds none."""

from pathlib import Path

import numpy as np

from vanilla_transformer.graph.search import write_graph
from vanilla_transformer.graph.session import read_model
from vanilla_transformer.graph.settings import Settings
from vanilla_transformer.graph.weights import WEIGHTS, read_header

NAME = "translate.onnx"
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


def write_beside(directory: Path) -> Settings:
    """Writes `translate.onnx` into a model directory; returns the settings that are its defaults.

    Its places in the file of weights are those of now. In one of another layout it finds no hypothesis; ONNX
    Runtime does not load it beside a smaller one, such as weights in float16 instead of float32.

    Raises:
        ModelError: There is something in the model or its settings that the graph does not know.
    """
    config, stored, settings = read_model(directory, {})
    length, _ = read_header(directory / WEIGHTS)
    header = np.fromfile(directory / WEIGHTS, np.uint8, length)
    graph = write_graph(config, stored, settings, header=(WEIGHTS, header))
    (directory / NAME).write_bytes(graph)
    return settings


def renew(directory: Path) -> str | None:
    """Writes `translate.onnx` anew, or takes it away where the model has none; returns the reason why it has none."""
    try:
        write_beside(directory)
    except (OSError, ValueError, KeyError) as error:
        (directory / NAME).unlink(missing_ok=True)
        return str(error)
    return None
