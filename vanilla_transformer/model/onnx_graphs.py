"""Graphs of ONNX, written operator by operator from a model's weights, and sessions of ONNX Runtime that run them.

It is optional: `engine` says whether it is there.
"""

from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import nn

# The version that the graphs were tried with first.
OLDEST_VERSION = (1, 31)
OWN_OPERATORS = "com.microsoft"
_OPSET, _IR_VERSION = 20, 10


@cache
def engine() -> tuple[Any, Any] | None:
    """The modules `onnx` and `onnxruntime`, if both are there and new enough."""
    try:
        onnx, onnxruntime = import_module("onnx"), import_module("onnxruntime")
    except ImportError:
        return None
    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    return (onnx, onnxruntime) if version >= OLDEST_VERSION else None


class Graph:
    """A graph while it is written: each method adds nodes and returns the name of what they compute.

    Args:
        heads: Of each attention in it.
        around: The graph of which it is the body of a loop.
        copied: Whether weights are copied, into the order that is multiplied fastest, in the place of read in place.
    """

    def __init__(self, heads: int, around: "Graph | None" = None, copied: bool = False) -> None:
        found = engine()
        assert found is not None
        self.onnx, self.runtime = found
        self.heads, self.around, self.copied = heads, around, copied
        # Names within a loop have to differ from those around it.
        self.prefix = "" if around is None else "step_"
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.constants: list[Any] = []
        self.memory: dict[str, Any] = {}

    def input(self, name: str, shape: list[Any] | None, kind: str = "FLOAT") -> str:
        """What each run is given; of a loop's body what each round is."""
        described = self.onnx.helper.make_tensor_value_info
        self.inputs.append(described(self.prefix + name, getattr(self.onnx.TensorProto, kind), shape))
        return self.prefix + name

    def constant(self, value: torch.Tensor) -> str:
        """A copy of the value."""
        name = f"{self.prefix}constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(value.detach().contiguous().numpy(), name))
        return name

    def in_place(self, weight: torch.Tensor) -> str:
        """A weight, contiguous float32, that each run reads where it is: it sees what that holds by then."""
        if self.around is not None:
            return self.around.in_place(weight)
        if self.copied:
            return self.constant(weight)
        name, values = f"weight_{len(self.memory)}", weight.detach().numpy()
        self.constants.append(self.onnx.numpy_helper.from_array(values, name))
        self.memory[name] = self.runtime.OrtValue.ortvalue_from_numpy(values)  # Takes the place of the copy.
        return name

    def node(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """One node; its output's name, or those of several."""
        names = [f"{self.prefix}{operator}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def loop(self, rounds: str, body: "Graph", first: list[str], results: list[str]) -> list[str]:
        """Another graph again and again, whose own inputs are the number of the round, a truth, and `first`.

        Args:
            rounds: How many there are at most.
            body: It may use what is computed here.
            first: What the first round begins with; the others with what the one before has left.
            results: Of a round: whether there is another one, what it leaves, and what is kept of each.

        Returns:
            What the last round leaves, and what is kept of all, along a first dimension.
        """
        graph = body.finished(results)
        return self.node(
            "Loop", rounds, self.constant(torch.tensor(True)), *first, outputs=len(results) - 1, body=graph
        )

    def linear(self, x: str, *modules: Any) -> str:
        """xWᵀ + b, of several linear layers concatenated."""
        outputs = self.node("MatMul", x, self.constant(torch.cat([module.weight for module in modules]).float().mT))
        if modules[0].bias is None:
            return outputs
        return self.node("Add", outputs, self.constant(torch.cat([module.bias for module in modules]).float()))

    def project(self, x: str, *modules: Any) -> list[str]:
        """Several linear layers of equal widths as one product, each one's output apart."""
        return self.node("Split", self.linear(x, *modules), outputs=len(modules), axis=-1, num_outputs=len(modules))

    def attend(self, *inputs: str) -> str:
        """Section 3.2.1 for all heads; 1 / √d_k is the operator's own."""
        least = torch.finfo(torch.float32).min
        attributes: dict[str, Any] = {"num_heads": self.heads, "mask_filter_value": least}
        return self.node("MultiHeadAttention", *inputs, domain=OWN_OPERATORS, **attributes)

    def sublayer(self, x: str, outputs: str, norm: nn.LayerNorm) -> str:
        """LayerNorm(x + Sublayer(x))."""
        weights = self.constant(norm.weight.float()), self.constant(norm.bias.float())
        return self.node("LayerNormalization", self.node("Add", x, outputs), *weights, epsilon=norm.eps)

    def feed_forward(self, x: str, layer: Any) -> str:
        """Section 3.3 with its residual and norm."""
        inner = self.node("Relu", self.linear(x, layer.feed_forward.w_1))
        return self.sublayer(x, self.linear(inner, layer.feed_forward.w_2), layer.feed_forward_norm)

    def finished(self, results: list[str]) -> Any:
        """The graph as the library has it."""
        outputs = [self.onnx.ValueInfoProto(name=name) for name in results]
        return self.onnx.helper.make_graph(self.nodes, "graph", self.inputs, outputs, self.constants)

    def session(self, results: list[str]) -> Any:
        """The graph ready to run."""
        helper = self.onnx.helper
        operators = [helper.make_opsetid("", _OPSET), helper.make_opsetid(OWN_OPERATORS, 1)]
        model = helper.make_model(self.finished(results), opset_imports=operators, ir_version=_IR_VERSION)
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        # What there is to fuse costs more to look for at each building than it saves.
        options.graph_optimization_level = self.runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        if self.memory:
            # Neither would see what is written later.
            options.graph_optimization_level = self.runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.add_session_config_entry("session.disable_prepacking", "1")
            for name, weight in self.memory.items():
                options.add_initializer(name, weight)
        return self.runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


__all__ = ["OWN_OPERATORS", "Graph", "engine"]
