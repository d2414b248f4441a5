"""The packed copies of a model's weights that `generate` keeps, and whether they still are what the weights say."""

import ctypes
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import starmap
from typing import Any

import torch

from .packed_weights import as_integers, checksum

# So many bytes of weights are kept once more as they were, which is faster to compare with than by checksums.
SNAPSHOT_BYTES = 1 << 26


def _memory_comparison() -> Any:
    """C's comparison of memory, twice as fast as NumPy's; None on systems where it has no such name."""
    try:
        compare = ctypes.PyDLL(None).memcmp
    except (AttributeError, OSError, TypeError):
        return None
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return compare


_memcmp = _memory_comparison()


class _Contents:
    """What some weights held, to compare them with, whole: by then they may have changed in any way."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self._pairs: list[tuple[Any, Any]] | None = None
        self._checksum: torch.Tensor | None = None
        size = sum(weight.numel() * weight.element_size() for weight in weights)
        if size <= SNAPSHOT_BYTES and all(weight.device.type == "cpu" for weight in weights):
            # Views of the memory: they see what is written past torch, and keep it from becoming another weight's.
            views = [as_integers(weight.detach()).numpy() for weight in weights]
            self._pairs = [(view, view.copy()) for view in views]
            in_order = [pair for pair in self._pairs if _memcmp is not None and pair[0].flags.c_contiguous]
            # Where a weight stands, where its copy stands, and how many bytes they are.
            self._memory = [(view.ctypes.data, copy.ctypes.data, view.nbytes) for view, copy in in_order]
            self._others = [pair for pair in self._pairs if _memcmp is None or not pair[0].flags.c_contiguous]
        else:
            self._checksum = checksum(weights)

    def are_those_of(self, weights: list[torch.Tensor]) -> bool:
        """Whether the weights, at the same addresses as before, hold the same bits."""
        if self._pairs is not None:
            if any(starmap(_memcmp, self._memory)):
                return False
            return all((view == copy).all() for view, copy in self._others)
        assert self._checksum is not None
        return torch.equal(self._checksum, checksum(weights))


class _PackedPart:
    """Encoder or decoder in each type that was asked for, and the weights that they were packed from."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self.addresses = [weight.data_ptr() for weight in weights]
        self.contents = _Contents(weights)
        self.versions: list[int] | None = None
        self.by_type: dict[tuple[torch.dtype, str | None], Any] = {}

    def is_current(self, weights: list[torch.Tensor], fixed: bool) -> bool:
        """Whether the weights are those that were packed; `fixed` ones are compared whole once for each version."""
        if self.addresses != [weight.data_ptr() for weight in weights]:
            return False
        versions = _versions(weights) if fixed else None
        if versions is not None and versions == self.versions:
            return True
        if not self.contents.are_those_of(weights):
            return False
        self.versions = versions
        return True


def _versions(weights: list[torch.Tensor]) -> list[int] | None:
    """How often torch has written each weight; None where it does not count."""
    if any(weight.is_inference() for weight in weights):
        return None
    return [weight._version for weight in weights]


# A model's weights are packed once for each type, and again when a weight has changed.
_PACKING = threading.Lock()
_PACKED: "weakref.WeakKeyDictionary[Any, dict[type, _PackedPart]]" = weakref.WeakKeyDictionary()
_FIXED: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()


def packed(
    model: Any,
    part: type[Any],
    dtype: torch.dtype,
    quantization: str | None,
    weights: list[torch.Tensor] | None = None,
) -> Any:
    """A model's encoder or decoder, packed by `part` from the weights that it has now; they may be given."""
    weights = list(part.weights(model)) if weights is None else weights
    fixed = model in _FIXED
    while True:
        known = _PACKED.get(model, {}).get(part)
        current = known is not None and known.is_current(weights, fixed)
        with _PACKING:
            parts = _PACKED.setdefault(model, {})
            if parts.get(part) is not known:
                continue  # Another thread has packed meanwhile.
            if known is None or not current:
                known = parts[part] = _PackedPart(weights)
            if (dtype, quantization) not in known.by_type:
                known.by_type[dtype, quantization] = part(model, dtype, quantization)
            return known.by_type[dtype, quantization]


def free_packed_weights(model: Any) -> None:
    """Frees the packed copies of a model's weights that `generate` has kept."""
    with _PACKING:
        _PACKED.pop(model, None)


def has_fixed_weights(model: Any) -> bool:
    """Whether a `with` of `fixed_weights` stands around the call."""
    return model in _FIXED


@contextmanager
def fixed_weights(model: Any) -> Iterator[None]:
    """In the body the weights are compared whole once, and then by torch's counts of what is written alone."""
    with _PACKING:
        if not _FIXED.get(model):
            for part in _PACKED.get(model, {}).values():
                part.versions = None
        _FIXED[model] = _FIXED.get(model, 0) + 1
    try:
        yield
    finally:
        with _PACKING:
            _FIXED[model] -= 1
            if not _FIXED[model]:
                del _FIXED[model]


__all__ = ["fixed_weights", "free_packed_weights", "has_fixed_weights", "packed"]
