"""Everything that is computed without a model's `forward`, by the engine, the exports and the page, in one place.

Exact classes, their parameters, every configuration field, the settings of `generate` that change nothing: anything
not on these lists is declined with a reason, such as an added parameter, field or class, a hook, a patched method. The
lists hold names, because this package's models import the engine and not the other way round.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.modules import module as torch_module
from transformers.activations import ACT2FN
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_OURS, _MODEL = "vanilla_transformer.", "vanilla_transformer.model."


def words(text: str) -> frozenset[str]:
    """Splits a list of names."""
    return frozenset(text.split())


# Of these classes alone a module may have parameters, with these names.
_WEIGHTED, _WEIGHTS = (nn.Linear, nn.LayerNorm, nn.Embedding), ("weight", "bias")
_TORCHS = (*_WEIGHTED, nn.ModuleList, nn.Dropout)
_ATTENTION = "self_attention self_attention_norm feed_forward feed_forward_norm dropout"
_STACK = "embed_tokens positional_encoding dropout layers"
# The submodules that a module of each class may have.
CLASSES = {
    "modeling_vanilla_transformer.MultiHeadAttention": words("q_proj k_proj v_proj out_proj"),
    "modeling_vanilla_transformer.PositionwiseFeedForward": words("w_1 w_2 activation activation_dropout"),
    "modeling_vanilla_transformer.PositionalEncoding": words("learned"),
    "modeling_vanilla_transformer.Dropout": words(""),
    "modeling_vanilla_transformer.EncoderLayer": words(_ATTENTION),
    "modeling_vanilla_transformer.DecoderLayer": words(f"{_ATTENTION} cross_attention cross_attention_norm"),
    "modeling_vanilla_transformer.Encoder": words(_STACK),
    "modeling_vanilla_transformer.Decoder": words(_STACK),
    "modeling_vanilla_transformer.VanillaTransformerModel": words("shared encoder decoder"),
    "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration": words("model lm_head"),
    "modeling_vanilla_transformer.VanillaTransformerDecoderModel": words(_STACK),
    "modeling_vanilla_transformer.VanillaTransformerDecoderForCausalLM": words("model lm_head"),
}
# A module that is called as it is instead of being computed another way.
_CALLED = "feed_forward.activation"
# The class that each of these submodules must have.
_CLASS_OF = {
    name: kind
    for kind, names in {
        "Linear": "q_proj k_proj v_proj out_proj w_1 w_2 lm_head",
        "LayerNorm": "self_attention_norm cross_attention_norm feed_forward_norm",
        "Embedding": "embed_tokens shared learned",
        "Dropout": "dropout activation_dropout",
        "MultiHeadAttention": "self_attention cross_attention",
        "PositionwiseFeedForward": "feed_forward",
        "PositionalEncoding": "positional_encoding",
        "ModuleList": "layers",
        "Encoder": "encoder",
        "Decoder": "decoder",
    }.items()
    for name in names.split()
}
_LAYERS = {"Encoder": "EncoderLayer", "Decoder": "DecoderLayer", "VanillaTransformerDecoderModel": "DecoderLayer"}

# Fields that change nothing once a model is built, or that are read where they act: sizes and switches from the
# modules and weights themselves, d_model from the embedding's scale.
_ANY_VALUE = words(
    "vocab_size d_model d_ff num_heads d_k d_v encoder_layers decoder_layers dropout attention_dropout "
    "activation_dropout label_smoothing positional_encoding max_position_embeddings layer_norm_eps attention_bias "
    "output_bias activation_function tie_word_embeddings documents num_layers cell attention "
    "input_feeding attention_window bidirectional initializer_range use_cache pad_token_id bos_token_id "
    "eos_token_id decoder_start_token_id is_encoder_decoder transformers_version architectures output_hidden_states "
    "_output_attentions return_dict dtype problem_type id2label label2id name_or_path _name_or_path _commit_hash "
    "auto_map custom_pipelines model_type tokenizer_class _attn_implementation_internal "
    "_experts_implementation_internal _post_init_done torch_dtype chunk_size_feed_forward"
)
# Implementations of the same attention.
_ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", None)
# Settings of `generate` that change the result of a search, with the values that do not.
NEUTRAL_SETTINGS: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": (None, []),
    "begin_suppress_tokens": (None, []),
    "do_sample": (None, False),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "exponential_decay_length_penalty": (None,),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "guidance_scale": (None, 1.0),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "no_repeat_ngram_size": (None, 0),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None,),
    "quantization": (None,),
    "repetition_penalty": (None, 1.0),
    "sequence_bias": (None, {}, []),
    "suppress_tokens": (None, []),
}
# Methods involved in calling a module, besides those of its own class.
_CALLS = ("__call__", "_wrapped_call_impl", "_call_impl", "forward", "__getattr__")
# Hooks that transformers leaves on a model once attentions were requested; they act only when requested again.
_CAPTURING = "transformers.utils.output_capturing"
# Packages whose decorators may stand around a method.
_DECORATORS = tuple(
    str(Path(package.__file__ or "").parent) for package in (torch, transformers, contextlib, functools)
)


def changed_settings(settings: Mapping[str, Any], followed: Collection[str] = ()) -> list[str]:
    """Returns the settings of `generate` with an effect, except those that a search follows."""
    return [
        name
        for name, neutral in NEUTRAL_SETTINGS.items()
        if name not in followed and settings.get(name) not in neutral
    ]


def unknown_to_export(model: Any, activations: Collection[str]) -> str | None:
    """Describes the first part of a model that is not on the lists, or that an export reads from the configuration."""
    reason = unknown(model, may_train=True)
    if reason is not None:
        return reason
    name = model.config.activation_function
    if name not in activations:
        return f"activation_function={name!r}, which is not one of {', '.join(activations)}"
    for place, module in model.named_modules():
        if place.endswith(".activation") and type(module) is not type(ACT2FN[name]):
            return f"{place}, which is a {type(module).__name__} and not the configuration's {name}"
        if isinstance(module, nn.LayerNorm) and (module.weight is None or module.bias is None):
            return f"{place}, which has no weight or no bias"
        if isinstance(module, nn.LayerNorm) and module.eps != model.config.layer_norm_eps:
            return f"{place}, whose eps is not the configuration's"
    return None


def unknown(model: nn.Module, may_train: bool = False) -> str | None:
    """Describes the first part of a model that is not on the lists; None if all of it is known.

    Args:
        model: A model.
        may_train: Whether the model may be in training mode, as for an export of its weights.
    """
    if model.training and not may_train:
        return "dropout (model.train())"
    # A model with a `start_decoding` of its own names the classes whose layers that calls, without their `forward`.
    by_steps: frozenset[type] = getattr(model, "decoded_classes", frozenset())
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "a global forward hook"
    kinds: dict[type, tuple[frozenset[str], frozenset[str]]] = {}
    for name, module in model.named_modules():
        if name.endswith(_CALLED):
            continue
        kind = type(module)
        if kind not in kinds:
            full_name = f"{kind.__module__}.{kind.__qualname__}".removeprefix(_MODEL)
            if kind not in _TORCHS and not (kind in by_steps if by_steps else full_name in CLASSES):
                return f"{name or 'the model'}, which is a {kind.__name__}"
            patched = next(_patched(kind), None)
            if patched is not None:
                return f"{patched}, which is patched"
            kinds[kind] = CLASSES.get(full_name, frozenset()), _own_methods(kind)
        reason = _unknown_module(name or "the model", module, *kinds[kind], by_steps=bool(by_steps))
        if reason is not None:
            return reason
        config = getattr(module, "config", None)
        reason = None if config is None else _unknown_field(config)
        if reason is not None:
            return reason
    return None if by_steps else _unknown_weights(model)


def _unknown_module(
    name: str, module: nn.Module, allowed: frozenset[str], methods: frozenset[str], by_steps: bool
) -> str | None:
    own = vars(module)
    if not methods.isdisjoint(own):
        return f"{name}.{min(methods.intersection(own))}, which is patched"
    hooks = module._forward_hooks.values()
    if module._forward_pre_hooks or any(getattr(hook, "__module__", None) != _CAPTURING for hook in hooks):
        return f"a hook on {name}"
    for key, buffer in module._buffers.items():
        if buffer is not None:
            return f"the buffer {name}.{key}"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return f"{name}, which has a max_norm"
    if by_steps:
        return None
    for key, value in module._parameters.items():
        if value is not None and not (type(module) in _WEIGHTED and key in _WEIGHTS):
            return f"the parameter {name}.{key}"
    for key, child in module._modules.items():
        if child is None or type(module) is nn.ModuleList:
            continue
        if key not in allowed:
            return f"the module {name}.{key}"
        if type(child).__name__ != _CLASS_OF.get(key, type(child).__name__):
            return f"{name}.{key}, which is a {type(child).__name__}"
        if key == "layers" and {type(layer).__name__ for layer in child.children()} - {_LAYERS[type(module).__name__]}:
            return f"a layer of {name} that is not a {_LAYERS[type(module).__name__]}"
    return None


def _unknown_field(config: Any) -> str | None:
    for name, value in vars(config).items():
        if name not in _ANY_VALUE:
            return f"the configuration field {name} = {value!r}"
    name = config._attn_implementation
    if name not in _ATTENTIONS:
        return f"attn_implementation={name!r}"
    for functions in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
        code = getattr(functions.get(name), "__code__", None)
        if name in functions and (code is None or not code.co_filename.startswith(_DECORATORS)):
            return f"the function registered as attn_implementation={name!r}"
    return None


def _unknown_weights(model: Any) -> str | None:
    """Describes weights that are not plain tensors on one device, or attention of other widths than its weights."""
    device = model.device
    if device.type == "meta":
        return "weights that are not in memory"
    for name, weight in model.named_parameters():
        if type(weight) is not nn.Parameter or weight.device != device or not weight.is_floating_point():
            return f"{name}, which is not a plain tensor on {device}"
    widths = set()
    for name, module in model.named_modules():
        if hasattr(module, "q_proj"):
            widths.add((module.d_k, module.d_v))
            heads = len(module.q_proj.weight) / module.d_k
            outputs = heads * module.d_k, heads * module.d_k, heads * module.d_v
            found = tuple(len(part.weight) for part in (module.q_proj, module.k_proj, module.v_proj))
            if found != outputs or module.is_causal != _is_causal(name):
                return f"{name}, whose weights, d_k, d_v and is_causal do not belong together"
    return None if len(widths) == 1 else "attention of several widths"


def _is_causal(name: str) -> bool:
    return name.endswith("self_attention") and not name.startswith("model.encoder.")


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
        module = sys.modules.get(base.__module__)
        own, source = base.__module__.startswith(_OURS), str(getattr(module, "__file__", ""))
        for name in [*vars(base)] if own else _CALLS:
            function: Any = vars(base).get(name)
            if isinstance(function, property):
                function = function.fget
            function = getattr(function, "__func__", function)
            while inspect.isfunction(function) and hasattr(function, "__wrapped__"):
                if not function.__code__.co_filename.startswith(_DECORATORS):
                    break
                function = function.__wrapped__
            if not inspect.isfunction(function):
                continue
            written_in = function.__code__.co_filename
            if written_in == source or written_in.startswith(str(Path(source).parent) if own else _DECORATORS):
                continue
            yield f"{base.__name__}.{name}"
