"""One embedding module for source, target and output, and whatever replaces it."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
    VanillaTransformerForConditionalGeneration,
)
from vanilla_transformer.model.modeling_vanilla_transformer import Decoder, Encoder, VanillaTransformerModel

SOURCE = torch.tensor([[5, 9, 7, 8, 2], [11, 4, 2, 0, 0]])
LABELS = torch.tensor([[6, 3, 12, 2], [9, 2, -100, -100]])
INPUTS = {"input_ids": SOURCE, "attention_mask": (SOURCE != 0).long(), "labels": LABELS}


@pytest.fixture(params=[True, False], ids=["tied", "three matrices"])
def model(request, tiny_config):
    torch.manual_seed(0)
    tiny_config.tie_word_embeddings = request.param
    return VanillaTransformerForConditionalGeneration(tiny_config).eval()


def modules(model):
    return [name for name, module in model.named_modules(remove_duplicate=False) if isinstance(module, nn.Embedding)]


def test_the_embedding_is_registered_once(model):
    own = [] if model.config.tie_word_embeddings else ["model.decoder.embed_tokens"]
    assert modules(model) == ["model.shared", *own]
    assert model.get_input_embeddings() is model.model.shared is model.model.encoder.embed_tokens


def test_another_embedding_in_its_place_is_that_of_both_sides(tiny_model):
    encoder = tiny_model.get_encoder()
    before = encoder(SOURCE).last_hidden_state
    tiny_model.model.shared = nn.Embedding(48, 32)
    assert not torch.equal(encoder(SOURCE).last_hidden_state, before)
    assert tiny_model.model.decoder.embed_tokens is tiny_model.model.shared


@pytest.mark.parametrize("other", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_an_embedding_of_its_own(model, other):
    twin, expected = other(model), model(**INPUTS).logits
    assert twin.model.encoder.embed_tokens is twin.model.shared is not model.model.shared
    with torch.no_grad():
        twin.model.shared.weight.zero_()
    assert torch.equal(model(**INPUTS).logits, expected)


def test_an_encoder_that_is_kept_alone_takes_its_embedding_along(model):
    states = model.get_encoder()(SOURCE).last_hidden_state
    encoder = copy.deepcopy(model).get_encoder()
    assert torch.equal(encoder(SOURCE).last_hidden_state, states)
    assert encoder.double()(SOURCE).last_hidden_state.dtype == torch.float64


def test_weights_begin_as_those_of_an_encoder_and_a_decoder(tiny_config):
    """The same seed begins the same run as before the embedding was one module: it still draws for both."""
    torch.manual_seed(0)
    encoder, decoder = Encoder(tiny_config), Decoder(tiny_config)
    torch.manual_seed(0)
    model = VanillaTransformerModel(tiny_config)
    assert torch.equal(model.shared.weight, encoder.embed_tokens.weight)
    for made, alone in ((model.encoder, encoder), (model.decoder, decoder)):
        for ours, theirs in zip(made.layers.parameters(), alone.layers.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_a_model_is_freed_at_once(tiny_config):
    """Without the garbage collector, which does not know of an accelerator's memory."""
    model = VanillaTransformerForConditionalGeneration(tiny_config)
    model(**INPUTS)
    freed = weakref.ref(model.model.shared)
    gc.disable()
    try:
        del model
        assert freed() is None
    finally:
        gc.enable()


def untie_in_the_configuration(model):
    model.config.tie_word_embeddings = False


def give_another_head(model):
    model.config.tie_word_embeddings = False
    model.lm_head = nn.Linear(model.config.d_model, model.config.vocab_size, bias=False)


def give_another_embedding(model):
    model.set_input_embeddings(nn.Embedding(model.config.vocab_size, model.config.d_model))


def give_the_decoder_another_embedding(model):
    model.config.tie_word_embeddings = False
    model.model.set_input_embeddings(nn.Embedding(model.config.vocab_size, model.config.d_model))


@pytest.mark.parametrize("family", ["transformer", "recurrent"])
@pytest.mark.parametrize(
    "untie",
    [untie_in_the_configuration, give_another_head, give_another_embedding, give_the_decoder_another_embedding],
)
def test_untied_weights_are_saved_as_they_are(family, untie, tiny_config, tmp_path):
    torch.manual_seed(0)
    if family == "transformer":
        model = VanillaTransformerForConditionalGeneration(tiny_config).eval()
    else:
        config = RecurrentEncoderDecoderConfig(vocab_size=48, d_model=32, dropout=0.0)
        model = RecurrentEncoderDecoderForConditionalGeneration(config).eval()
    untie(model)
    expected = model(**INPUTS).logits
    model.save_pretrained(tmp_path / "saved")
    # As a Trainer saves.
    model.save_pretrained(tmp_path / "by a trainer", state_dict=model.state_dict())
    for name in ("saved", "by a trainer"):
        loaded, report = type(model).from_pretrained(tmp_path / name, output_loading_info=True)
        assert not any(report.values())
        assert torch.equal(loaded(**INPUTS).logits, expected)
