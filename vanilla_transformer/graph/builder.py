"""ONNX graphs, written operator by operator."""

from collections.abc import Callable, Sequence

import numpy as np

from vanilla_transformer.graph import messages
from vanilla_transformer.graph.messages import KINDS, OWN_OPERATORS

Shape = Sequence[int | str]


class Graph:
    """A graph under construction: each method adds nodes and returns the name of their output.

    Args:
        around: The outer graph, where this one is the body of a loop in it.
    """

    def __init__(self, around: "Graph | None" = None) -> None:
        # Names inside a loop must differ from those around it.
        self.prefix: str = "" if around is None else f"{around.prefix}{len(around.nodes)}_"
        self.nodes: list[bytes] = []
        self.inputs: list[bytes] = []
        self.outputs: dict[str, bytes] = {}
        self.initializers: list[bytes] = []
        self._kept: dict[object, str] = {}

    def input(self, name: str, shape: Shape | None, kind: str = "FLOAT", default: object = None) -> str:
        """Adds an input of each run, with its default; in a loop's body, an input of each iteration."""
        name = self.prefix + name
        self.inputs.append(messages.value(name, shape, kind))
        if default is not None:
            self.initializers.append(messages.tensor(name, _array(default)))
        return name

    def output(self, name: str, value: str, shape: Shape, kind: str = "FLOAT") -> None:
        """Names and describes an output."""
        self.nodes.append(messages.node("Identity", [value], [name], {}))
        self.outputs[name] = messages.value(name, shape, kind)

    def constant(self, value: np.ndarray) -> str:
        """Adds an array."""
        name = f"{self.prefix}constant_{len(self.initializers)}"
        self.initializers.append(messages.tensor(name, value))
        return name

    def number(self, *values: float) -> str:
        """Adds a vector of integers, booleans or floats; equal ones share one copy."""
        value = _array(values)
        return self.once((values, value.dtype), lambda: self.constant(value))

    def scalar(self, value: float) -> str:
        """Adds one number without a dimension."""
        number = _array(value)
        return self.once((value, number.dtype), lambda: self.constant(number))

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        """Adds one node; returns the name of its output."""
        return self.outputs_of(operator, *inputs, outputs=1, domain=domain, **attributes)[0]

    def own(self, operator: str, *inputs: str, **attributes: object) -> str:
        """Adds one node of ONNX Runtime's own operators."""
        return self.node(operator, *inputs, domain=OWN_OPERATORS, **attributes)

    def outputs_of(
        self, operator: str, *inputs: str, outputs: int, domain: str = "", **attributes: object
    ) -> list[str]:
        """Adds one node of several outputs; returns their names."""
        names = [f"{self.prefix}{operator}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(messages.node(operator, inputs, names, attributes, domain))
        return names

    def loop(self, rounds: str, body: "Graph", first: list[str], results: list[str]) -> list[str]:
        """Repeats another graph, whose own inputs are the iteration number, a boolean, and `first`.

        Args:
            rounds: Maximum number of iterations.
            body: The graph of one iteration; it may use values of this graph.
            first: Inputs of the first iteration; each later one gets the outputs of the iteration before.
            results: Outputs of an iteration: whether to continue, values for the next one, and values to collect.

        Returns:
            The values that the last iteration leaves, and the collected values of all, along a first dimension.
        """
        graph = body.finished(results)
        return self.outputs_of("Loop", rounds, self.scalar(True), *first, outputs=len(results) - 1, body=graph)

    def cast(self, x: str, kind: str) -> str:
        """Casts to another type."""
        return self.node("Cast", x, to=KINDS[kind])

    def finished(self, results: list[str]) -> bytes:
        """Returns the graph as a message."""
        outputs = [self.outputs.get(name) or messages.untyped(name) for name in results]
        return messages.graph(self.nodes, self.inputs, outputs, self.initializers)

    def once(self, key: object, write: Callable[[], str]) -> str:
        """Returns the name of a part that is written on first use."""
        if key not in self._kept:
            self._kept[key] = write()
        return self._kept[key]


def _array(value: object) -> np.ndarray:
    """Returns integers and booleans in their own type, and floats in float32."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array
