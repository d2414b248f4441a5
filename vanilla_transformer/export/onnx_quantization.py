"""Graphs of ONNX in 8 bits: matrices that multiply, and embeddings row by row."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from vanilla_transformer.export.silence import silence

_LAST_AXIS = "last_axis"


def quantize_graphs(directory: Path) -> None:
    """Puts graphs with 8-bit matrices in the place of those in the directory."""
    for path in sorted(directory.glob("*.onnx")):
        quantize_graph(path, path)


def quantize_graph(source: Path, target: Path) -> None:
    """Writes a graph with 8-bit matrices; an embedding that is the output projection too is there once."""
    whole = onnx.load(source)
    turned = _turn_weights(whole.graph)
    with silence(), TemporaryDirectory() as directory:
        rounded = Path(directory) / "rounded.onnx"
        # Of 7 bits with a scale for each output, which is as exact as 8 with one for all: without VNNI the sums of
        # weights of 8 bits do not fit in the 16 that pairs are added in, and nobody knows where a file goes.
        quantize_dynamic(
            whole,
            rounded,
            op_types_to_quantize=["MatMul"],
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
        )
        quantized = onnx.load(rounded)
    _quantize_embeddings(quantized.graph, turned)
    onnx.save(quantized, target)


def _turn_weights(graph: Any) -> dict[str, str]:
    """Writes down the way they multiply those matrices that nodes turn, as the quantizer looks for them.

    Returns:
        Names of matrices with those of the turned ones.
    """
    weights, turned = {weight.name: weight for weight in graph.initializer}, {}
    for node in list(graph.node):
        if node.op_type == "Transpose" and node.input[0] in weights and len(weights[node.input[0]].dims) == 2:
            matrix = np.ascontiguousarray(numpy_helper.to_array(weights[node.input[0]]).T)
            graph.initializer.append(numpy_helper.from_array(matrix, node.output[0]))
            graph.node.remove(node)
            turned[node.input[0]] = node.output[0]
    _drop_unused(graph)
    return turned


def _quantize_embeddings(graph: Any, turned: dict[str, str]) -> None:
    """Rows that are looked up are of 8 bits with a scale each: those of the output projection where they are the same.

    The name of a quantized matrix is its own with an ending, as the quantizer has it.
    """
    weights = {weight.name: weight for weight in graph.initializer}
    graph.initializer.append(numpy_helper.from_array(np.array([-1]), _LAST_AXIS))
    for node in list(graph.node):
        name = node.input[0] if node.op_type == "Gather" else ""
        if name not in weights or len(weights[name].dims) != 2 or weights[name].data_type != onnx.TensorProto.FLOAT:
            continue
        product = turned.get(name, name)
        rows, scales, added = f"{name}_rows", f"{product}_scale", []
        if f"{product}_quantized" in weights:
            # Turned back as the graph is loaded.
            added.append(helper.make_node("Transpose", [f"{product}_quantized"], [rows], perm=[1, 0]))
        else:
            matrix = numpy_helper.to_array(weights[name])
            scale = np.maximum(abs(matrix).max(1) / 127, np.finfo(np.float32).tiny)
            graph.initializer.append(numpy_helper.from_array(scale, scales))
            graph.initializer.append(numpy_helper.from_array((matrix / scale[:, None]).round().astype(np.int8), rows))
        ids, output = node.input[1], node.output[0]
        added += [
            helper.make_node("Gather", [rows, ids], [f"{output}_rounded"]),
            helper.make_node("Cast", [f"{output}_rounded"], [f"{output}_whole"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Gather", [scales, ids], [f"{output}_scale"]),
            helper.make_node("Unsqueeze", [f"{output}_scale", _LAST_AXIS], [f"{output}_scales"]),
            helper.make_node("Mul", [f"{output}_whole", f"{output}_scales"], [output]),
        ]
        place = list(graph.node).index(node)
        graph.node.remove(node)
        for part in reversed(added):
            graph.node.insert(place, part)
    _drop_unused(graph)


def _drop_unused(graph: Any) -> None:
    used = {name for node in graph.node for name in node.input}
    kept = [weight for weight in graph.initializer if weight.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
