"""A model's weights held fixed at a caller's request: packed or quantized once, then only read."""

import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Self, TypeVar

import torch
from torch import nn

from .cpu import computing_dtype
from .known import unknown
from .linear import Weights, unsupported_quantization

Part = TypeVar("Part")

# The blocks around a call, innermost last: of its own thread or task, or handed on by `contextvars.copy_context`.
_OPEN: ContextVar[tuple["Frozen", ...]] = ContextVar("open blocks", default=())


class Frozen:
    """A block, or one call, in which a model decodes with the weights at its beginning; see `frozen` of a model.

    It ends when it is left, in whatever order blocks are left, and not before, whether or not it is kept. Inside
    another block of the model its weights and its 8 bits remain.

    Args:
        model: A model that the engine knows; of another, blocks change nothing.
        quantization: None for the setting of each call, or "int8" for all calls.
        copy: Whether the model's weights may change meanwhile.
    """

    def __init__(self, model: Any, quantization: str | None = None, copy: bool = True) -> None:
        self.frozen_model = self.model = model
        self.quantization, self._copy = quantization, copy
        self._is_open = False
        self._parts: dict[Any, Any] = {}
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> Self:
        """Takes the weights."""
        model, quantization = self.frozen_model, self.quantization
        reason = unknown(model, may_train=True) or unsupported_quantization(quantization, model.device)
        if reason is not None and quantization is not None:
            raise refusal(quantization, reason)
        if reason is not None:
            return self  # Each call checks again, and logs why the library runs it.
        outer = opened(model)
        if outer is not None:
            self.model, self._parts = outer.model, outer._parts
            self.quantization = quantization or outer.quantization
        elif self._copy:
            self.model = _copied(model)
        self._is_open = True
        _OPEN.set((*_OPEN.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        """Forgets the weights, also in threads that were given the block."""
        self._is_open = False
        _OPEN.set(tuple(block for block in _OPEN.get() if block is not self))
        self.model, self._parts = self.frozen_model, {}

    def part(self, kind: Callable[[Any, Weights], Part], dtype: torch.dtype, quantization: str | None) -> Part:
        """Returns a `Decoder` or an `Encoder` for the type in which the library's search would compute."""
        dtype = computing_dtype(dtype, self.model.device)
        weights = Weights(dtype, packed=True, quantization=self.quantization or quantization)
        # A lock of each process: a fork copies those that other threads hold, and nobody there gives them back.
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            if (kind, weights) not in self._parts:
                with torch.no_grad():
                    self._parts[kind, weights] = kind(self.model, weights)
            return self._parts[kind, weights]


def opened(model: Any) -> Frozen | None:
    """Returns the innermost block of a model around the call, or None."""
    blocks = reversed(_OPEN.get())
    return next((block for block in blocks if block.frozen_model is model and block._is_open), None)


def refusal(quantization: str, reason: str) -> ValueError:
    """Returns the error of a call or a block that cannot have 8 bits."""
    return ValueError(f"quantization={quantization!r} cannot be combined with {reason}: leave one of them out.")


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
