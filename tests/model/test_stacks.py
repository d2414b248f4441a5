"""An encoder or decoder that is used without its model, and gradient checkpointing of a stack."""

import json

import pytest
import torch
from searches import INPUTS, sharp
from small_models import random_model

from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.modeling_vanilla_transformer import CACHE_FIELD


def stacks(model):
    return {"encoder": model.get_encoder(), "decoder": model.get_decoder()}


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_stack_is_converted_frozen_and_listed_with_its_embedding(name: str):
    model = sharp(0)
    stack = stacks(model)[name]
    embedding = model.get_input_embeddings().weight
    assert sum(parameter is embedding for parameter in stack.parameters()) == 1
    assert dict(stack.named_parameters())["embed_tokens.weight"] is embedding
    stack.requires_grad_(False)
    assert not embedding.requires_grad
    stack.double()
    assert {parameter.dtype for parameter in stack.parameters()} == {torch.float64}
    assert stack.embed_tokens.weight.dtype == torch.float64
    stack.to("meta")
    assert stack.embed_tokens.weight.device.type == "meta"


def test_a_converted_encoder_runs():
    encoder = sharp(0).get_encoder().double()
    assert encoder(**INPUTS).last_hidden_state.dtype == torch.float64


def test_a_model_lists_its_embedding_once():
    model = sharp(0)
    names = [name for name, parameter in model.named_parameters() if "shared" in name or "embed_tokens" in name]
    assert names == ["model.shared.weight"]
    assert not any("embed_tokens" in name for name in model.state_dict())
    assert model.num_parameters() == sum(weight.numel() for weight in set(model.parameters()))


@pytest.mark.parametrize("kind", ["translator", "language-model"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_gradients_are_the_same_without_labels(kind: str, reentrant: bool):
    """A user's own loss, as in distillation: caching is on by default."""
    ids = torch.tensor([[5, 9, 7, 8], [11, 4, 6, 3]])
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if kind == "translator" else {})
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = random_model(kind).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if checkpointing:
            # transformers 5.24 renamed it.
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        output = model(**inputs)
        assert (output.get(CACHE_FIELD) is None) == checkpointing
        output.logits.float().logsumexp(-1).sum().backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, msg=name)


def test_widths_of_heads_that_follow_from_others_are_derived_again(tmp_path):
    VanillaTransformerConfig(d_model=64, num_heads=4).save_pretrained(tmp_path)
    for changed, width in (({"d_model": 32}, 8), ({"hidden_size": 32}, 8), ({"num_heads": 2}, 32), ({}, 16)):
        config = VanillaTransformerConfig.from_pretrained(tmp_path, **changed)
        assert (config.d_k, config.d_v) == (width, width)
    saved = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**saved, "d_k": 16, "d_v": 16}))  # As earlier versions did.
    assert VanillaTransformerConfig.from_pretrained(tmp_path, d_model=32).d_k == 8
    VanillaTransformerConfig(d_model=64, num_heads=4, d_k=24).save_pretrained(tmp_path)
    config, unused = VanillaTransformerConfig.from_pretrained(tmp_path, d_model=32, other=1, return_unused_kwargs=True)
    assert (config.d_k, config.d_v, unused) == (24, 8, {"other": 1})


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_kept_positions_are_those_computed_in_training(context):
    """Decoding keeps the encodings of the first positions, whatever was computed before."""
    encoding = sharp(0).model.encoder.positional_encoding
    computed = encoding(40, device=torch.device("cpu"))
    with context():
        for length, start in ((3, 0), (1, 3), (2, 30), (5, 0), (1, 39)):
            assert torch.equal(encoding(length, start, torch.device("cpu")), computed[start : start + length])
        encoding(2, device=torch.device("meta"))
        assert torch.equal(encoding(7, 1, torch.device("cpu")), computed[1:8])
    weight = torch.ones(40, requires_grad=True)
    (encoding(40, device=torch.device("cpu")) * weight[:, None]).sum().backward()
