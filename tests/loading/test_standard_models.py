"""A model that was changed in any way is not computed without its `forward`."""

import copy

import pytest
import torch
from accelerate import cpu_offload
from searches import INPUTS, sharp
from small_models import HEADS, random_model
from torch import nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedConfig

from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.loading.standard_models import unsupported_part


def part_of(model) -> str | None:
    return unsupported_part(model, ["relu"])


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("training", [True, False])
def test_a_model_as_its_class_builds_it_is_standard(kind: str, training: bool):
    model = random_model(kind).train(training)
    assert part_of(model) is None
    assert part_of(copy.deepcopy(model)) is None
    assert part_of(model.to(torch.bfloat16)) is None


def test_a_model_is_standard_after_it_has_recorded_attention():
    model = sharp(0)
    model.set_attn_implementation("eager")
    model(**INPUTS, labels=INPUTS["input_ids"], output_attentions=True)
    assert part_of(model) is None


ATTENTION = "model.decoder.layers.0.self_attention"
ADDED = {
    "parameter": lambda module: module.register_parameter("added", nn.Parameter(torch.ones(2))),
    "buffer": lambda module: module.register_buffer("added", torch.ones(2)),
    "module": lambda module: module.add_module("added", nn.Linear(2, 2)),
    "hook": lambda module: module.register_forward_hook(lambda *_: None),
    "pre-hook": lambda module: module.register_forward_pre_hook(lambda *_: None),
    "forward": lambda module: setattr(module, "forward", module.forward),
    "method": lambda module: setattr(module, "_heads", module._heads),
    "width": lambda module: setattr(module, "d_k", 4),
    "bias": lambda module: setattr(module.v_proj, "bias", nn.Parameter(torch.ones(16))),
    "projection": lambda module: setattr(module, "q_proj", type("Adapter", (nn.Linear,), {})(16, 16, bias=False)),
}


@pytest.mark.parametrize("add", ADDED.values(), ids=ADDED)
def test_a_changed_module_is_named(add):
    model = sharp(0)
    add(model.get_submodule(ATTENTION))
    assert ATTENTION in part_of(model)


def epsilon(model):
    model.model.encoder.layers[0].feed_forward_norm.eps = 0.5


def activation(model):
    model.model.decoder.layers[0].feed_forward.activation = nn.GELU()


def field(model):
    model.config.relative_positions = 16


def offloaded(model):
    cpu_offload(model, execution_device="cpu")


def attention(model):
    model.config._attn_implementation = "mine"


def half_a_model(model):
    model.model.encoder.to("meta")


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (epsilon, "feed_forward_norm.eps = 0.5"),
        (activation, "activation, which is a GELU"),
        (field, "relative_positions = 16"),
        (offloaded, "forward, which is patched"),
        (attention, "attn_implementation='mine'"),
        (half_a_model, "not in memory"),
        (lambda model: setattr(model.config, "activation_function", "gelu"), "activation_function='gelu'"),
    ],
)
def test_a_change_after_loading_is_named(edit, named: str):
    model = sharp(0)
    edit(model)
    assert named in part_of(model)


@pytest.mark.parametrize("value", [None, 16])
def test_a_field_of_a_newer_transformers_counts_unless_it_has_its_default(monkeypatch, value):
    own = PreTrainedConfig.__post_init__
    monkeypatch.setattr(PreTrainedConfig, "__post_init__", lambda self, **kwargs: own(self, new=None, **kwargs))
    model = sharp(0)
    model.config.new = value
    assert part_of(model) == (None if value is None else "the configuration field new = 16")


def test_a_subclass_is_named():
    class Mine(VanillaTransformerForConditionalGeneration):
        pass

    assert "a Mine" in part_of(sharp(0, Mine))
    model = sharp(0)
    old = model.model.decoder.layers[0]
    model.model.decoder.layers[0] = type("MyLayer", (type(old),), {})(model.config, 0)
    assert "a MyLayer" in part_of(model)


def test_a_global_hook_is_named():
    model = sharp(0)
    for register in (torch_module.register_module_forward_hook, torch_module.register_module_forward_pre_hook):
        handle = register(lambda *_: None)
        try:
            assert part_of(model) == "a global forward hook"
        finally:
            handle.remove()
    assert part_of(model) is None
