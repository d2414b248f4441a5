"""Whatever is changed in a model: `generate` finds what the library's search finds on it, or declines."""

import copy
from contextlib import nullcontext
from dataclasses import fields

import pytest
import torch
from searches import INPUTS, sharp, without_engine
from small_models import random_model
from torch import nn
from torch.nn.modules import module as torch_module
from transformers import GenerationConfig, PreTrainedConfig

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.engine import calls
from vanilla_transformer.engine.known import unknown
from vanilla_transformer.graph.settings import limit_of_new_tokens
from vanilla_transformer.model import modeling_vanilla_transformer as modeling

ASKED = {**INPUTS, "max_new_tokens": 6, "num_beams": 2, "return_dict_in_generate": True}


def sequences(model, by: str) -> torch.Tensor:
    torch.manual_seed(0)
    with nullcontext() if by == "engine" else without_engine():
        return model.generate(**ASKED).sequences


def assert_equal_or_declined(model, ways: list[str], must_decline: bool = False) -> None:
    ways.clear()
    # An embedding with a `max_norm` changes its weights as it is read.
    found = sequences(copy.deepcopy(model), "engine")
    taken = ways[-1]
    assert torch.equal(found, sequences(copy.deepcopy(model), "library"))
    assert taken == "library" or not must_decline


def other_values(value) -> list:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 2]
    if isinstance(value, float):
        return [value + 0.25]
    return ["other"] if value is None else [None, "gelu"]


FIELDS = sorted({field.name for field in fields(VanillaTransformerConfig) if not field.name.startswith("_")})


@pytest.mark.parametrize("name", FIELDS)
def test_every_configuration_field_may_be_another(ways_taken, name: str):
    model = sharp(0)
    # The search's own tokens and the library's switches are asked of the settings, or make the library fail as well.
    for value in other_values(getattr(model.config, name)):
        changed = copy.deepcopy(model)
        try:
            setattr(changed.config, name, value)
            sequences(changed, "library")
        except Exception:  # There is nothing to be equal to: values or tokens that are none, outputs without names.
            continue
        assert_equal_or_declined(changed, ways_taken)


ADDED = {
    "configuration field": lambda module: setattr(module.config, "relative_positions", 16),
    "parameter": lambda module: module.register_parameter("added", nn.Parameter(torch.ones(2))),
    "buffer": lambda module: module.register_buffer("added", torch.ones(2)),
    "module": lambda module: module.add_module("added", nn.Linear(2, 2)),
    "hook": lambda module: module.register_forward_hook(lambda *_: None),
    "pre-hook": lambda module: module.register_forward_pre_hook(lambda *_: None),
    "forward": lambda module: setattr(module, "forward", module.forward),
    "method": lambda module: setattr(module, "_heads", module._heads),
}


@pytest.mark.parametrize("add", ADDED.values(), ids=ADDED)
def test_an_added_part_is_declined(ways_taken, add):
    model = sharp(0)
    add(model.model.decoder.layers[0].self_attention)
    assert_equal_or_declined(model, ways_taken, must_decline=True)


@pytest.mark.parametrize("value", [None, 16])
def test_a_field_of_a_newer_library_is_declined_unless_it_has_its_default(ways_taken, monkeypatch, value):
    own = PreTrainedConfig.__post_init__
    monkeypatch.setattr(PreTrainedConfig, "__post_init__", lambda self, **kwargs: own(self, new=None, **kwargs))
    model = sharp(0)
    model.config.new = value
    assert_equal_or_declined(model, ways_taken)
    assert ways_taken[0] == ("engine" if value is None else "library")


METHODS = [
    *((nn.Linear, "forward"), (modeling.Encoder, "forward"), (modeling.MultiHeadAttention, "_heads")),
    *((modeling.PositionalEncoding, "_encode"), (modeling.Encoder, "shares_embedding")),
]


@pytest.mark.parametrize(("kind", "name"), METHODS, ids=lambda part: getattr(part, "__name__", part))
def test_a_patched_method_is_declined(ways_taken, monkeypatch, kind: type, name: str):
    model, own = sharp(0), getattr(kind, name)
    others = {
        "_heads": staticmethod(lambda *args: own(*args)),
        "shares_embedding": property(lambda self: own.fget(self)),
    }
    monkeypatch.setattr(kind, name, others.get(name, lambda self, *args, **kwargs: own(self, *args, **kwargs)))
    assert_equal_or_declined(model, ways_taken, must_decline=True)


def test_a_subclass_is_declined(ways_taken):
    class Mine(VanillaTransformerForConditionalGeneration):
        pass

    assert_equal_or_declined(sharp(0, Mine), ways_taken, must_decline=True)
    model = sharp(0)
    old = model.model.decoder.layers[0]
    model.model.decoder.layers[0] = type("MyLayer", (type(old),), {})(model.config, 0)
    assert_equal_or_declined(model, ways_taken, must_decline=True)


def test_a_global_hook_is_declined(ways_taken):
    model = sharp(0)
    for register in (torch_module.register_module_forward_hook, torch_module.register_module_forward_pre_hook):
        handle = register(lambda *_: None)
        try:
            assert_equal_or_declined(model, ways_taken, must_decline=True)
        finally:
            handle.remove()
    assert unknown(model) is None


def eps(model):
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.5


def activation(model):
    for layer in model.model.decoder.layers:
        layer.feed_forward.activation = nn.GELU()


def bias_on_values_alone(model):
    attention = model.model.decoder.layers[0].self_attention
    attention.v_proj.bias = nn.Parameter(torch.ones(attention.v_proj.out_features))


def max_norm(model):
    model.get_input_embeddings().max_norm = 0.5


def adapter(model):
    part = type("Adapter", (nn.Linear,), {})(16, 16, bias=False)
    model.set_submodule("model.decoder.layers.0.self_attention.q_proj", part)


@pytest.mark.parametrize("edit", [eps, activation, bias_on_values_alone, max_norm, adapter])
def test_a_change_after_a_call_is_seen(ways_taken, edit):
    model = sharp(0)
    before = sequences(model, "engine")
    edit(model)
    assert_equal_or_declined(model, ways_taken)
    assert edit is bias_on_values_alone or not torch.equal(sequences(model, "engine"), before)


def test_the_reason_is_logged(monkeypatch):
    model, logged = sharp(0), []
    monkeypatch.setattr(calls.logger, "info_once", logged.append)
    model.model.decoder.layers[0].add_module("relative_bias", nn.Embedding(3, 3))
    model.generate(**ASKED)
    assert "model.decoder.layers.0.relative_bias" in logged[0]


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_length": 12},
        {"max_length": 20},
        {"max_length": 20, "max_new_tokens": 7},
        {"max_length": 20, "max_length_beyond_source": 3},
        {"max_length": 20, "max_length_beyond_source": 3, "assistant_lookbehind": 10},
        {"max_length": 19, "max_length_beyond_source": 3, "assistant_lookbehind": 10},
    ],
    ids=str,
)
def test_the_limit_of_new_tokens_is_that_of_generate(limits):
    model, source = random_model("translator"), torch.tensor([[5, 6, 7, 8]])
    own = {"length_penalty_type": "huggingface", "suppress_tokens": [model.config.eos_token_id]}
    model.generation_config = GenerationConfig.from_dict(
        model.generation_config.to_dict()
        | own
        | dict.fromkeys(("max_length", "max_new_tokens", "max_length_beyond_source"))
        | limits
    )
    limit = limit_of_new_tokens(model.generation_config.to_diff_dict()) or source.shape[1] + 3
    assert model.generate(source, num_beams=1).shape[1] - 1 == limit
