"""Which live models are computed without their `forward`: by the engine, the graph, the exports and the page.

A model is known if it is what its class builds of its configuration, module for module, by this package's own code,
and if class, configuration fields, activation and settings of `generate` are on these lists. Anything else is declined
with a reason, such as an added parameter or field, a hook, a patched method. The lists hold names, because this
package's models import the engine and not the other way round.
"""

import contextlib
import copy
import functools
import inspect
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vanilla_transformer.graph.settings import words
from vanilla_transformer.graph.supported import FIELDS

_OURS = "vanilla_transformer."
_CLASSES = words(
    "VanillaTransformerForConditionalGeneration VanillaTransformerEncoderForMaskedLM "
    "VanillaTransformerEncoderForSequenceClassification VanillaTransformerEncoderForTokenClassification "
    "VanillaTransformerDecoderForCausalLM RecurrentEncoderDecoderForConditionalGeneration"
)
# Attributes of modules that change nothing without dropout.
_WITHOUT_EFFECT = words(
    "training p attention_dropout gradient_checkpointing name_or_path kernel_config loss_type padding_idx norm_type "
    "scale_grad_by_freq sparse"
)
# Implementations of the same attention.
_ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", None)
# Methods involved in calling a module or in a step of `generate`, in addition to the methods of the module's class.
# PEFT replaces `prepare_inputs_for_generation`.
_CALLS = (
    *("__call__", "_wrapped_call_impl", "_call_impl", "forward", "__getattr__"),
    *("_update_model_kwargs_for_generation", "prepare_inputs_for_generation"),
)
# Hooks that transformers leaves on a model once attentions were requested; they act only when requested again.
_CAPTURING = "transformers.utils.output_capturing"
# Where decorators that may stand around a method are written, and methods themselves.
_DECORATORS = (
    *(f"{Path(package.__file__ or '').parent}{os.sep}" for package in (torch, transformers)),
    *(str(module.__file__) for module in (contextlib, functools)),
)
_WRITTEN_IN = (*_DECORATORS, f"{Path(__file__).parents[1]}{os.sep}")
# The last models that were built to compare others with; they have no weights.
_BUILT: dict[object, nn.Module] = {}
_KEPT = 8


def unknown_to_export(model: PreTrainedModel, activations: Collection[str]) -> str | None:
    """Describes the first part of a model that is not on the lists, or an activation that is not among these."""
    name = getattr(model.config, "activation_function", None)
    if name is not None and name not in activations:
        return f"activation_function={name!r}, which is not one of {', '.join(activations)}"
    return unknown(model, may_train=True)


def unknown(model: PreTrainedModel, may_train: bool = False) -> str | None:
    """Describes the first part of a model that is not on the lists; None if all of it is known.

    A model whose weights are exported may be in training mode.
    """
    if model.training and not may_train:
        return "dropout (model.train())"
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "a global forward hook"
    kind = type(model)
    if not kind.__module__.startswith(_OURS) or kind.__qualname__ not in _CLASSES:
        return f"the model, which is a {kind.__name__}"
    reason = _unknown_field(model.config)
    if reason is not None:
        return reason
    try:
        built = dict(_built(model).named_modules())
    except Exception as error:  # The class may refuse changed fields in any way.
        return f"the configuration, of which no {kind.__name__} can be built: {error}"
    methods: dict[type, frozenset[str]] = {}
    for name, module in model.named_modules():
        place, kind = name or "the model", type(module)
        if kind is not type(built.get(name)):
            return f"{place}, which is a {kind.__name__}"
        if kind not in methods:
            patched = next(_patched(kind), None)
            if patched is not None:
                return f"{patched}, which is patched"
            methods[kind] = _own_methods(kind)
        reason = _difference(place, module, built[name], methods[kind])
        if reason is not None:
            return reason
    device = model.device
    if device.type == "meta":
        return "weights that are not in memory"
    for name, weight in model.named_parameters():
        if type(weight) is not nn.Parameter or weight.device != device or not weight.is_floating_point():
            return f"{name}, which is not a plain tensor on {device}"
    return None


def _built(model: PreTrainedModel) -> nn.Module:
    """Returns what the class of a model builds of its configuration, without weights."""
    key = type(model), tuple((name, repr(value)) for name, value in sorted(vars(model.config).items()))
    if key not in _BUILT:
        with torch.device("meta"), torch.inference_mode(False):
            built = type(model)(copy.deepcopy(model.config))
        if len(_BUILT) >= _KEPT:
            _BUILT.clear()
        _BUILT[key] = built
    return _BUILT[key]


def _difference(place: str, module: nn.Module, built: nn.Module, methods: frozenset[str]) -> str | None:
    """Describes what distinguishes a module from the one that its class builds."""
    own = vars(module)
    if not methods.isdisjoint(own):
        return f"{place}.{min(methods.intersection(own))}, which is patched"
    hooks = module._forward_hooks.values()
    if module._forward_pre_hooks or any(getattr(hook, "__module__", None) != _CAPTURING for hook in hooks):
        return f"a hook on {place}"
    for parts in ("_parameters", "_buffers", "_modules"):
        ours, theirs = (
            {name: getattr(part, "shape", None) for name, part in vars(one)[parts].items() if part is not None}
            for one in (module, built)
        )
        if ours != theirs:
            name = next(name for name in [*ours, *theirs] if ours.get(name, 0) != theirs.get(name, 0))
            return f"the {parts[1:-1]} {place}.{name}"
    for name, value in vars(built).items():
        plain = not name.startswith("_") and isinstance(value, bool | int | float | str | tuple | None)
        if plain and name not in _WITHOUT_EFFECT and own.get(name) != value:
            return f"{place}.{name} = {own.get(name)!r}"
    return None


def _unknown_field(config: PreTrainedConfig) -> str | None:
    for name, value in vars(config).items():
        # A newer transformers may have more fields: at their own defaults they change nothing.
        if name not in FIELDS and not name.startswith("_") and (name, value) not in vars(PreTrainedConfig()).items():
            return f"the configuration field {name} = {value!r}"
    name = config._attn_implementation
    if name not in _ATTENTIONS:
        return f"attn_implementation={name!r}"
    for functions in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
        code = getattr(functions.get(name), "__code__", None)
        if name in functions and (code is None or not code.co_filename.startswith(_DECORATORS)):
            return f"the function registered as attn_implementation={name!r}"
    return None


def _own_methods(kind: type) -> frozenset[str]:
    """Returns the methods that a module's own attributes must not replace."""
    names = set(_CALLS)
    for base in kind.__mro__:
        if base.__module__.startswith(_OURS):
            names.update(name for name, value in vars(base).items() if callable(value) or isinstance(value, property))
    return frozenset(names)


def _patched(kind: type) -> Iterator[str]:
    """Yields the methods of a class that differ from its source."""
    for base in kind.__mro__:
        for name in vars(base) if base.__module__.startswith(_OURS) else _CALLS:
            function: Any = vars(base).get(name)
            function = getattr(function, "fget", getattr(function, "__func__", function))
            function = inspect.unwrap(function, stop=lambda one: not _is_written_in(one, _DECORATORS))
            if inspect.isfunction(function) and not _is_written_in(function, _WRITTEN_IN):
                yield f"{base.__name__}.{name}"


def _is_written_in(function: object, places: tuple[str, ...]) -> bool:
    return inspect.isfunction(function) and function.__code__.co_filename.startswith(places)
