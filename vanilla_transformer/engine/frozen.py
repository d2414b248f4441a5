"""A model's weights held fixed at a caller's request: packed, quantized or compiled once, then only read."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .cpu import computing_dtype
from .decoder import Decoder
from .encoder import Encoder
from .known import unknown
from .linear import PackedWeights, unsupported_quantization
from .onnx_search import GraphSearch


class Frozen:
    """Encoder and decoder with a model's weights in the layouts of the processor, made on first use.

    Args:
        model: A model that the engine knows, which does not change as long as this is used.
        quantization: None for the setting of each call, or "int8" for all calls.
    """

    def __init__(self, model: Any, quantization: str | None = None) -> None:
        self.model, self.quantization = model, quantization
        self._parts: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def decoder(self, dtype: torch.dtype, quantization: str | None) -> Decoder:
        """Returns the decoder for a type of its activations."""
        packed = PackedWeights(dtype, self.quantization or quantization, few_rows=True)
        return self._part(Decoder, packed, replace(packed, few_rows=False))

    def encode(self, arguments: dict[str, Any], quantization: str | None) -> torch.Tensor:
        """Returns the encoder's output in the type in which the library's search would compute.

        Args:
            arguments: `input_ids` or `inputs_embeds`, and `attention_mask`.
            quantization: None, or "int8".
        """
        model = self.model
        device = model.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else model.dtype
        with torch.autocast(device, enabled=False):
            weights = PackedWeights(computing_dtype(dtype, model.device), self.quantization or quantization)
            return self._part(Encoder, weights)(**arguments).to(dtype)

    def search(self, dtype: torch.dtype, quantization: str | None, rows: int) -> Any:
        """Returns the search as one graph if that is fastest for `rows` hypotheses; else None."""
        if dtype != torch.float32 or self.quantization or quantization:
            return None
        search = self._part(GraphSearch.of)
        return search if search is not None and search.suits(rows) else None

    def _part(self, kind: Any, *weights: PackedWeights) -> Any:
        with self._lock:
            key = kind, weights[:1]
            if key not in self._parts:
                with torch.no_grad():
                    self._parts[key] = kind(self.model, *weights)
            return self._parts[key]


def _copied(model: Any) -> Any:
    """Returns the model with modules and weights of its own, which later changes of the given one do not reach.

    All other attributes are shared, because they may be anything. `copy.deepcopy` would take several times as long.
    """
    weights = {weight: nn.Parameter(weight.detach().clone(), requires_grad=False) for weight in model.parameters()}
    modules = {module: object.__new__(type(module)) for module in model.modules()}
    for module, own in modules.items():
        vars(own).update(vars(module))
        vars(own)["_parameters"] = {name: weights.get(weight) for name, weight in module._parameters.items()}
        vars(own)["_modules"] = {name: modules.get(part) for name, part in module._modules.items()}
        # An embedding that a stack takes from its model is registered only there.
        vars(own)["_shared"] = tuple(modules.get(part, part) for part in vars(module).get("_shared", ()))
    return modules[model]


# The innermost engine of a model is used, from any thread, until its `with` ends.
_OPEN: "weakref.WeakKeyDictionary[Any, list[Frozen]]" = weakref.WeakKeyDictionary()
_OPENING = threading.Lock()


def opened(model: Any) -> Frozen | None:
    """Returns the engine of the `with frozen(model)` around the call, or None."""
    found = _OPEN.get(model)
    return found[-1] if found else None


@contextmanager
def frozen(model: Any, quantization: str | None = None, copy: bool = True) -> Iterator[Frozen]:
    """Holds an engine for a known model, within another of it the same one; see `PaperGenerationMixin.frozen`.

    Args:
        copy: Whether the weights may change inside, and those at the beginning count.

    Raises:
        ValueError: The quantization is unknown, or not available for this model or here.
    """
    reason = unsupported_quantization(quantization, model.device)
    reason = unknown(model) if reason is None else reason
    if reason is not None and quantization is not None:
        raise ValueError(f"quantization={quantization!r} cannot be combined with {reason}: leave one of them out.")
    if reason is not None:
        yield Frozen(model, quantization)  # Each call checks again, and logs why the library runs it.
        return
    with _OPENING:
        outer = opened(model)
        if copy and outer is not None and outer.model is model:
            outer = None  # That of another thread's call, whose weights are no copy.
        if outer is not None and quantization in (None, outer.quantization):
            engine = outer
        else:
            held = model if outer is None else outer.model
            engine = Frozen(_copied(model) if copy and outer is None else held, quantization)
        _OPEN.setdefault(model, []).append(engine)
    try:
        yield engine
    finally:
        with _OPENING:
            _OPEN[model].remove(engine)
            if not _OPEN[model]:
                del _OPEN[model]
