"""Which loaded models may be computed without their `forward`: by the ONNX graph, the exports and the explorer.

A model qualifies if its class is one of this package, and if it equals, module for module, what that class builds from
a configuration whose fields are all supported. Anything else may change what `forward` computes.
"""

import copy
from collections.abc import Collection
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedConfig, PreTrainedModel

from vanilla_transformer.graph.supported import FIELDS
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.model.modeling_vanilla_transformer_decoder import VanillaTransformerDecoderForCausalLM
from vanilla_transformer.model.modeling_vanilla_transformer_encoder import (
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerEncoderForSequenceClassification,
    VanillaTransformerEncoderForTokenClassification,
)
from vanilla_transformer.recurrent.modeling_recurrent_encoder_decoder import (
    RecurrentEncoderDecoderForConditionalGeneration,
)

_CLASSES = (
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerEncoderForSequenceClassification,
    VanillaTransformerEncoderForTokenClassification,
    VanillaTransformerDecoderForCausalLM,
    RecurrentEncoderDecoderForConditionalGeneration,
)
# Implementations of the same attention.
_ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", None)
# Attributes of modules that change nothing outside of training.
_WITHOUT_EFFECT = ("training", "p", "attention_dropout", "gradient_checkpointing", "name_or_path", "loss_type")
# transformers leaves such hooks on a model once attention weights were requested. They act only when requested again.
_CAPTURING = "transformers.utils.output_capturing"


def unsupported_part(model: PreTrainedModel, activations: Collection[str]) -> str | None:
    """Describe the first part of a model that only its own `forward` computes, or return None.

    Args:
        model: In training or evaluation mode; dropout is ignored.
        activations: The activation functions that the other computation supports.
    """
    config, kind = model.config, cast(Any, type(model))
    if kind not in _CLASSES:
        return f"the model, which is a {kind.__name__}"
    reason = _unsupported_field(config, activations)
    if reason is not None:
        return reason
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "a global forward hook"
    try:
        with torch.device("meta"), torch.inference_mode(False):
            standard = dict(kind(copy.deepcopy(config)).named_modules())
    except Exception as error:  # A class may reject changed fields in any way.
        return f"the configuration, from which no {kind.__name__} can be built: {error}"
    for name, module in model.named_modules():
        reason = _difference(name or "the model", module, standard.get(name))
        if reason is not None:
            return reason
    for name, weight in model.named_parameters():
        if type(weight) is not nn.Parameter or not weight.is_floating_point():
            return f"{name}, which is not a plain tensor"
        if weight.device != model.device or weight.device.type == "meta":
            return f"{name}, which is not in memory on {model.device}"
    return None


def _unsupported_field(config: PreTrainedConfig, activations: Collection[str]) -> str | None:
    for name, value in vars(config).items():
        # A newer transformers may have more fields. With their own defaults they change nothing.
        if name not in FIELDS and not name.startswith("_") and (name, value) not in vars(PreTrainedConfig()).items():
            return f"the configuration field {name} = {value!r}"
    activation = getattr(config, "activation_function", None)
    if activation is not None and activation not in activations:
        return f"activation_function={activation!r}, which is not one of {', '.join(activations)}"
    if config._attn_implementation not in _ATTENTIONS:
        return f"attn_implementation={config._attn_implementation!r}"
    return None


def _difference(place: str, module: nn.Module, standard: nn.Module | None) -> str | None:
    """Describe how a module differs from the module that the model's class builds."""
    if type(module) is not type(standard):
        return f"{place}, which is a {type(module).__name__}"
    own, hooks = vars(module), module._forward_hooks.values()
    if module._forward_pre_hooks or any(getattr(hook, "__module__", None) != _CAPTURING for hook in hooks):
        return f"a hook on {place}"
    for name, value in own.items():
        if callable(value) and callable(getattr(type(module), name, None)):
            return f"{place}.{name}, which is patched"
    for kind, tensors in {"parameter": "_parameters", "buffer": "_buffers"}.items():
        shapes, expected = (
            {name: tensor.shape for name, tensor in vars(one)[tensors].items() if tensor is not None}
            for one in (module, standard)
        )
        for name in [*shapes, *expected]:
            if shapes.get(name) != expected.get(name):
                return f"the {kind} {place}.{name}"
    plain: dict[str, Any] = {name: value for name, value in vars(standard).items() if name[0] != "_"}
    for name, value in plain.items():
        is_plain = isinstance(value, bool | int | float | str | tuple | None)
        if is_plain and name not in _WITHOUT_EFFECT and own.get(name) != value:
            return f"{place}.{name} = {own.get(name)!r}"
    return None
