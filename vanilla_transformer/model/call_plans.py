"""What a call of `generate` means, worked out by the library once and kept while nothing that it follows from changes.

That is the call's arguments, the settings and configuration of the model, how long hypotheses may get, and the modules
of the model with their hooks and weights. All of it is compared at each call; what cannot be compared has no plan.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from operator import contains, is_, itemgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import GenerationConfig, StoppingCriteriaList

from .packed_copies import free_packed_weights
from .packed_decoder import PackedDecoder
from .packed_encoder import PackedEncoder

# Plans of a model, and lengths of a plan, that are kept.
MOST_PLANS = 64
_CAPTURING = "transformers.utils.output_capturing"
_MODULES, _PARAMETERS = itemgetter("_modules"), itemgetter("_parameters")
_HOOKS_AND_MODULES = itemgetter("_forward_hooks", "_forward_pre_hooks", "_modules")
_ATOMS = frozenset({type(None), bool, int, float, str, torch.dtype})


class Prepared(NamedTuple):
    """What the library hands to a search.

    Attributes:
        start: The token that the decoder starts with.
        logits_processor: As it comes from the settings.
        stopping_criteria: As they come from the settings and the call.
        settings: With all that the library fills in.
    """

    start: int
    logits_processor: Any
    stopping_criteria: StoppingCriteriaList
    settings: GenerationConfig


class CallPlan:
    """A call's meaning: `by_length` has what the library prepares for hypotheses of at most so many tokens.

    `of_sentence` has what follows from that for the search of one sentence alone, and `limits` how long the hypotheses
    of one of so many tokens may get.
    """

    def __init__(self, beyond_source: int | None, structure: "Structure") -> None:
        self.beyond_source, self.structure = beyond_source, structure
        self.by_length: dict[int | None, Prepared] = {}
        self.of_sentence: dict[int | None, Any] = {}
        self.limits: dict[int, tuple[torch.Tensor | None, int | None]] = {}


class Structure:
    """The modules of a plain model as they are, with weights and without hooks, to compare them with later."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = list(model.modules())[1:]  # The model itself is not kept.
        self.kinds, self.instances = list(map(type, self.modules)), list(map(vars, self.modules))
        self.attributes = tuple(vars(model))
        self.children = list(model._modules.values())
        self.shared = [(module, module._shared) for module in self.modules if hasattr(module, "_shared")]
        self.weights: list[torch.Tensor] = list(model.parameters())
        self.packed = {part: list(part.weights(model)) for part in (PackedEncoder, PackedDecoder)}
        # What reads the weights where they are, kept as long as they are there.
        self.in_place: dict[type, Any] = {}
        self.dtype = next(weight.dtype for weight in self.weights if weight.is_floating_point())
        self._hooks_and_modules = [tuple(map(dict, parts)) for parts in map(_HOOKS_AND_MODULES, self.instances)]
        # Those that have some: what is asked of few is asked soon.
        self._parents = list(filter(_MODULES, self.instances))
        self._owners = list(filter(_PARAMETERS, self.instances))
        self._children, self._owned = _values_of(_MODULES, self._parents), _values_of(_PARAMETERS, self._owners)
        self._memory = self._places()

    def is_that_of(self, model: nn.Module) -> bool:
        """Whether the model still has the same modules, hooks and weights, and these their places."""
        if model.training or tuple(vars(model)) != self.attributes or is_hooked(model):
            return False
        if list(model._modules.values()) != self.children:
            return False
        if any(map(contains, self.instances, repeat("forward"))):
            return False
        owned = _values_of(_PARAMETERS, self._owners)
        return (
            list(map(_HOOKS_AND_MODULES, self.instances)) == self._hooks_and_modules
            and _values_of(_MODULES, self._parents) == self._children  # In this order.
            and len(owned) == len(self._owned)
            and all(map(is_, owned, self._owned))
            and list(map(type, self.modules)) == self.kinds
            and all(module._shared is shared for module, shared in self.shared)
            and self._places() == self._memory
        )

    def _places(self) -> list[Any]:
        """Where the weights stand in memory, of which shape and in which order."""
        asked = (torch.Tensor.data_ptr, torch.Tensor.size, torch.Tensor.is_contiguous)
        return [tuple(map(part, self.weights)) for part in asked]

    def has_plain_weights(self) -> bool:
        """Whether all are contiguous and in float32, so that they can be read in place."""
        return all(weight.dtype == torch.float32 and weight.is_contiguous() for weight in self.weights)

    def reading_in_place(self, kind: type[Any], model: nn.Module) -> Any:
        """Something that reads the model's plain weights where they are."""
        found = self.in_place.get(kind)
        return self.in_place.setdefault(kind, kind(model)) if found is None else found


def _values_of(part: Callable[[dict[str, Any]], dict[str, Any]], instances: list[dict[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, map(part, instances))))


def is_hooked(module: nn.Module) -> bool:
    """Whether a hook may see or change what goes through a module.

    Those that the library leaves once a model was asked for its attention or hidden states do nothing until it is
    asked again.
    """
    if not module._forward_hooks:
        return bool(module._forward_pre_hooks)
    others = any(getattr(hook, "__module__", None) != _CAPTURING for hook in module._forward_hooks.values())
    return others or bool(module._forward_pre_hooks)


_PLANS: "weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], CallPlan]]" = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def call_key(model: Any, arguments: dict[str, Any], given: GenerationConfig | None) -> tuple[Any, ...] | None:
    """All that a call's meaning follows from, but its tensors and the model's modules; None where it has no key."""
    key: list[Any] = []
    try:
        for values in (arguments, vars(model.generation_config), vars(model.config), vars(given) if given else {}):
            _flatten(values, key)
    except TypeError:
        return None
    return tuple(key)


def _flatten(value: Any, into: list[Any]) -> None:
    """Adds values and their types, so that what is equal and of another type, as 1 and True, differs."""
    kind = type(value)
    into.append(kind)
    if kind in _ATOMS:
        into.append(value)
    elif kind is dict:
        into.append(len(value))
        for name, part in value.items():
            into.append(name)
            _flatten(part, into)
    elif kind is list or kind is tuple:
        into.append(len(value))
        for part in value:
            _flatten(part, into)
    else:
        raise TypeError(f"A {kind.__name__} is not compared.")


class PlainCall(NamedTuple):
    """A call whose meaning can be kept.

    Attributes:
        ids_NS: The source's tokens.
        mask_NS: Its mask.
        key: What the call's meaning follows from.
        sentence: The tokens, if it is one sentence without padding.
    """

    ids_NS: torch.Tensor
    mask_NS: torch.Tensor
    key: tuple[Any, ...]
    sentence: list[int] | None


def plain_call(
    model: Any, inputs: torch.Tensor | None, given: GenerationConfig | None, arguments: dict[str, Any]
) -> PlainCall | None:
    """The call, if it is one of a plain model on a CPU by tokens and mask; its other arguments are in the key."""
    ids, mask = arguments.get("input_ids"), arguments.get("attention_mask")
    if inputs is not None:
        ids = inputs if ids is None else None
    # What a class of another package overrides may look at the inputs.
    if type(model).__module__.rpartition(".")[0] != __name__.rpartition(".")[0] or torch.is_autocast_enabled("cpu"):
        return None
    if type(ids) is not torch.Tensor or ids.dim() != 2 or ids.dtype != torch.long or ids.device.type != "cpu":
        return None
    if type(mask) is not torch.Tensor or mask.shape != ids.shape or mask.device.type != "cpu" or not ids.numel():
        return None
    others = {name: value for name, value in arguments.items() if name not in ("input_ids", "attention_mask")}
    key = call_key(model, others, given)
    if key is None:
        return None
    if len(ids) == 1 and set(mask.tolist()[0]) == {1}:
        return PlainCall(ids, mask, key, ids.tolist()[0])
    return PlainCall(ids, mask, key, None) if mask.any(-1).all() else None


class PlannedCall(NamedTuple):
    """A plain call with its plan, and how long hypotheses may get: each sentence's, and the longest (None: any)."""

    call: PlainCall
    plan: CallPlan
    limits: torch.Tensor | None
    longest: int | None


class _Recording(NamedTuple):
    """A plain call that the library prepares; see `PlannedCall`."""

    model: Any
    call: PlainCall
    beyond_source: int | None
    limits: torch.Tensor | None
    longest: int | None


_RECORDING = threading.local()


@contextmanager
def recorded(
    model: Any, call: PlainCall | None, beyond_source: int | None, limits: torch.Tensor | None, longest: int | None
) -> Iterator[None]:
    """What the library prepares for this call in the body is kept, once a search says so (`record`)."""
    before = getattr(_RECORDING, "call", None)
    _RECORDING.call = None if call is None else _Recording(model, call, beyond_source, limits, longest)
    try:
        yield
    finally:
        _RECORDING.call = before


def record(model: Any, prepared: Prepared) -> PlannedCall | None:
    """Keeps what was prepared for the call that is going on, if that is to be recorded, and returns its plan."""
    recording: _Recording | None = getattr(_RECORDING, "call", None)
    if recording is None or recording.model is not model:
        return None
    _, call, beyond_source, limits, longest = recording
    plan = known_plan(model, call.key) or _new_plan(model, call.key, beyond_source)
    if len(plan.by_length) < MOST_PLANS:
        plan.by_length[longest] = prepared
    return PlannedCall(call, plan, limits, longest) if longest in plan.by_length else None


def known_plan(model: Any, key: tuple[Any, ...]) -> CallPlan | None:
    """The plan of an earlier call like this one, if the model has not changed since."""
    plan = _PLANS.get(model, {}).get(key)
    if plan is None or plan.structure.is_that_of(model):
        return plan
    forget_plans(model)
    return None


def _new_plan(model: Any, key: tuple[Any, ...], beyond_source: int | None) -> CallPlan:
    with _LOCK:
        plans = _PLANS.setdefault(model, {})
        known = next(iter(plans.values()), None)
        structure = known.structure if known is not None and known.structure.is_that_of(model) else Structure(model)
        if len(plans) >= MOST_PLANS:
            plans.clear()
        plan = plans[key] = CallPlan(beyond_source, structure)
        return plan


def forget_plans(model: Any) -> None:
    """Drops all plans of a model, and what was packed of its modules."""
    with _LOCK:
        _PLANS.pop(model, None)
    free_packed_weights(model)


__all__ = ["CallPlan", "PlannedCall", "Prepared", "forget_plans", "known_plan", "plain_call", "record", "recorded"]
