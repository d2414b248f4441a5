"""Writes ONNX graphs, operator by operator, without the package `onnx`, which takes long to import.

ONNX files are protocol buffers. The field numbers are defined in `onnx.proto`. A message is represented by its bytes.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

OPSET, IR_VERSION = 20, 10
OWN_OPERATORS = "com.microsoft"
KINDS = {"FLOAT": 1, "UINT8": 2, "INT8": 3, "INT32": 6, "INT64": 7, "BOOL": 9, "FLOAT16": 10, "BFLOAT16": 16}
_OF_NUMPY = {"f4": "FLOAT", "u1": "UINT8", "i1": "INT8", "i4": "INT32", "i8": "INT64", "b1": "BOOL"}
_EXTERNAL = 1
Shape = Sequence[int | str]
# Types of attributes.
_FLOAT, _INT, _STRING, _GRAPH, _INTS = 1, 2, 3, 5, 7


def _number(value: int) -> bytes:
    """Returns a number with seven bits per byte, the lowest first; 2^64 is added to negative numbers."""
    value %= 1 << 64
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _integer(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _part(field: int, value: bytes | str) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return _number(field << 3 | 2) + _number(len(value)) + value


def _attribute(name: str, value: object) -> bytes:
    if isinstance(value, float):
        return _part(1, name) + _number(2 << 3 | 5) + struct.pack("<f", value) + _integer(20, _FLOAT)
    if isinstance(value, int):
        return _part(1, name) + _integer(3, value) + _integer(20, _INT)
    if isinstance(value, str):
        return _part(1, name) + _part(4, value) + _integer(20, _STRING)
    if isinstance(value, bytes):
        return _part(1, name) + _part(6, value) + _integer(20, _GRAPH)
    assert isinstance(value, Sequence)
    return _part(1, name) + b"".join(_integer(8, one) for one in value) + _integer(20, _INTS)


def node_message(
    operator: str, inputs: Iterable[str], outputs: Iterable[str], attributes: Mapping[str, object], domain: str = ""
) -> bytes:
    """Returns a NodeProto, one operator; an attribute is a number, a text, several integers, or a graph as bytes."""
    named = [_part(1, name) for name in inputs] + [_part(2, name) for name in outputs] + [_part(4, operator)]
    return b"".join(named + [_part(5, _attribute(*pair)) for pair in attributes.items()]) + _part(7, domain)


def tensor_message(name: str, value: np.ndarray) -> bytes:
    """Returns a TensorProto that contains its numbers."""
    kind = KINDS[_OF_NUMPY[value.dtype.str[1:]]]
    return _tensor(name, value.shape, kind) + _part(9, np.ascontiguousarray(value).tobytes())


def external_message(name: str, shape: Iterable[int], kind: str, file: str, offset: int, length: int) -> bytes:
    """Returns a TensorProto whose numbers are stored in another file, starting at a byte offset."""
    place = {"location": file, "offset": str(offset), "length": str(length)}
    entries = [_part(13, _part(1, key) + _part(2, value)) for key, value in place.items()]
    return _tensor(name, shape, KINDS[kind]) + b"".join(entries) + _integer(14, _EXTERNAL)


def _tensor(name: str, shape: Iterable[int], kind: int) -> bytes:
    return b"".join(_integer(1, size) for size in shape) + _integer(2, kind) + _part(8, name)


def value_message(name: str, shape: Sequence[int | str] | None, kind: str) -> bytes:
    """Returns a ValueInfoProto, the type and shape of an input or output; a variable size has a name."""
    found = _integer(1, KINDS[kind])
    if shape is not None:
        sizes = [_integer(1, size) if isinstance(size, int) else _part(2, size) for size in shape]
        found += _part(2, b"".join(_part(1, size) for size in sizes))
    return _part(1, name) + _part(2, _part(1, found))


def graph_message(nodes: list[bytes], inputs: list[bytes], outputs: list[bytes], initializers: list[bytes]) -> bytes:
    """Returns a GraphProto."""
    parts = (1, nodes), (5, initializers), (11, inputs), (12, outputs)
    return _part(2, "graph") + b"".join(_part(field, one) for field, some in parts for one in some)


def model_message(graph: bytes) -> bytes:
    """Returns a ModelProto, which is the content of a file."""
    operators = [_part(1, domain) + _integer(2, number) for domain, number in (("", OPSET), (OWN_OPERATORS, 1))]
    return _integer(1, IR_VERSION) + _part(7, graph) + b"".join(_part(8, one) for one in operators)


class Graph:
    """A graph under construction. Most methods add nodes and return the name of their output.

    Args:
        around: The outer graph, if this graph is the body of a loop.
    """

    def __init__(self, around: "Graph | None" = None) -> None:
        # Names inside a loop must differ from names outside of it.
        self.prefix: str = "" if around is None else f"{around.prefix}{len(around.nodes)}_"
        self.nodes: list[bytes] = []
        self.inputs: list[bytes] = []
        self.outputs: dict[str, bytes] = {}
        self.initializers: list[bytes] = []
        self._kept: dict[object, str] = {}

    def input(self, name: str, shape: Shape | None, kind: str = "FLOAT", default: object = None) -> str:
        """Adds an input with an optional default. In the body of a loop, it is an input of each iteration."""
        name = self.prefix + name
        self.inputs.append(value_message(name, shape, kind))
        if default is not None:
            self.initializers.append(tensor_message(name, _array(default)))
        return name

    def output(self, name: str, value: str, shape: Shape, kind: str = "FLOAT") -> None:
        """Adds an output with a name, a shape and a type."""
        self.nodes.append(node_message("Identity", [value], [name], {}))
        self.outputs[name] = value_message(name, shape, kind)

    def constant(self, value: np.ndarray) -> str:
        """Adds a constant array."""
        name = f"{self.prefix}constant_{len(self.initializers)}"
        self.initializers.append(tensor_message(name, value))
        return name

    def number(self, *values: float) -> str:
        """Adds a constant vector of integers, booleans or floats; equal vectors share one copy."""
        value = _array(values)
        return self.once((values, value.dtype), lambda: self.constant(value))

    def scalar(self, value: float) -> str:
        """Adds a constant number, which has no dimension."""
        number = _array(value)
        return self.once((value, number.dtype), lambda: self.constant(number))

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        """Adds one node; returns the name of its output."""
        return self.outputs_of(operator, *inputs, outputs=1, domain=domain, **attributes)[0]

    def own(self, operator: str, *inputs: str, **attributes: object) -> str:
        """Adds one node with one of ONNX Runtime's own operators."""
        return self.node(operator, *inputs, domain=OWN_OPERATORS, **attributes)

    def outputs_of(
        self, operator: str, *inputs: str, outputs: int, domain: str = "", **attributes: object
    ) -> list[str]:
        """Adds one node with several outputs; returns their names."""
        names = [f"{self.prefix}{operator}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(node_message(operator, inputs, names, attributes, domain))
        return names

    def loop(self, rounds: str, body: "Graph", first: list[str], results: list[str]) -> list[str]:
        """Adds a loop over another graph, whose inputs are the iteration number, a boolean, and further values.

        Args:
            rounds: Maximum number of iterations.
            body: The graph of one iteration, which may use values of this graph.
            first: The further values for the first iteration; each iteration returns them for the next.
            results: Outputs of an iteration: whether to continue, values for the next one, and values to collect.

        Returns:
            The values after the last iteration, and the values collected in all iterations, along a first dimension.
        """
        graph = body.finished(results)
        return self.outputs_of("Loop", rounds, self.scalar(True), *first, outputs=len(results) - 1, body=graph)

    def cast(self, x: str, kind: str) -> str:
        """Casts a value to another type."""
        return self.node("Cast", x, to=KINDS[kind])

    def finished(self, results: list[str]) -> bytes:
        """Returns the graph as a message; only the outputs of the outermost graph have a type and a shape."""
        outputs = [self.outputs.get(name) or _part(1, name) for name in results]
        return graph_message(self.nodes, self.inputs, outputs, self.initializers)

    def once(self, key: object, write: Callable[[], str]) -> str:
        """Returns the name of a value, which is added on first use."""
        if key not in self._kept:
            self._kept[key] = write()
        return self._kept[key]


def _array(value: object) -> np.ndarray:
    """Returns an array; floats are converted to float32."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array
