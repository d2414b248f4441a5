"""The few messages of the ONNX format that a graph needs, as protocol buffers: `onnx` takes long to import.

Field numbers are those of `onnx.proto`. A message is its bytes.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

OPSET, IR_VERSION = 20, 10
OWN_OPERATORS = "com.microsoft"
KINDS = {"FLOAT": 1, "UINT8": 2, "INT8": 3, "INT32": 6, "INT64": 7, "BOOL": 9, "FLOAT16": 10, "BFLOAT16": 16}
_OF_NUMPY = {"f4": "FLOAT", "u1": "UINT8", "i1": "INT8", "i4": "INT32", "i8": "INT64", "b1": "BOOL"}
_EXTERNAL = 1
# Types of attributes.
_FLOAT, _INT, _STRING, _GRAPH, _INTS = 1, 2, 3, 5, 7


def _number(value: int) -> bytes:
    """Returns seven bits a byte, the lowest first; negative numbers count from 2^64."""
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


def node(
    operator: str, inputs: Iterable[str], outputs: Iterable[str], attributes: Mapping[str, object], domain: str = ""
) -> bytes:
    """A NodeProto: one operator. An attribute is a number, a text, several integers, or the bytes of a graph."""
    named = [_part(1, name) for name in inputs] + [_part(2, name) for name in outputs] + [_part(4, operator)]
    return b"".join(named + [_part(5, _attribute(*pair)) for pair in attributes.items()]) + _part(7, domain)


def tensor(name: str, value: np.ndarray) -> bytes:
    """A TensorProto that holds its numbers."""
    kind = KINDS[_OF_NUMPY[value.dtype.str[1:]]]
    return _tensor(name, value.shape, kind) + _part(9, np.ascontiguousarray(value).tobytes())


def external(name: str, shape: Iterable[int], kind: str, file: str, offset: int, length: int) -> bytes:
    """A TensorProto whose numbers are in a file beside it, from a byte on."""
    place = {"location": file, "offset": str(offset), "length": str(length)}
    entries = [_part(13, _part(1, key) + _part(2, value)) for key, value in place.items()]
    return _tensor(name, shape, KINDS[kind]) + b"".join(entries) + _integer(14, _EXTERNAL)


def _tensor(name: str, shape: Iterable[int], kind: int) -> bytes:
    return b"".join(_integer(1, size) for size in shape) + _integer(2, kind) + _part(8, name)


def value(name: str, shape: Sequence[int | str] | None, kind: str) -> bytes:
    """A ValueInfoProto: type and shape of an input or output; a size that varies is a name."""
    found = _integer(1, KINDS[kind])
    if shape is not None:
        sizes = [_integer(1, size) if isinstance(size, int) else _part(2, size) for size in shape]
        found += _part(2, b"".join(_part(1, size) for size in sizes))
    return _part(1, name) + _part(2, _part(1, found))


def untyped(name: str) -> bytes:
    """A ValueInfoProto that leaves type and shape to what computes the value."""
    return _part(1, name)


def graph(nodes: list[bytes], inputs: list[bytes], outputs: list[bytes], initializers: list[bytes]) -> bytes:
    """A GraphProto."""
    parts = (1, nodes), (5, initializers), (11, inputs), (12, outputs)
    return _part(2, "graph") + b"".join(_part(field, one) for field, some in parts for one in some)


def model(graph: bytes) -> bytes:
    """A ModelProto: a whole file."""
    operators = [_part(1, domain) + _integer(2, number) for domain, number in (("", OPSET), (OWN_OPERATORS, 1))]
    return _integer(1, IR_VERSION) + _part(7, graph) + b"".join(_part(8, one) for one in operators)
