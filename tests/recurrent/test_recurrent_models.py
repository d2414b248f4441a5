"""Recurrent encoder-decoders: every cell and attention, beside a loop written out, trained, searched and saved."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from refusals import refused
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
    RecurrentEncoderDecoderModel,
)
from vanilla_transformer.model.modeling_vanilla_transformer import CACHE_FIELD

# Each attention and each cell, with and without what is fed back and a window.
KINDS = [
    ("lstm", "luong-general", True, 2),
    ("lstm", "luong-dot", False, None),
    ("lstm", "none", True, None),
    ("gru", "bahdanau", True, None),
    ("gru", "luong-concat", False, 2),
]


def make(cell="lstm", attention="luong-general", feeding=True, window=None, **settings):
    """A small random model whose states are far from zero."""
    torch.manual_seed(0)
    config = RecurrentEncoderDecoderConfig(
        **{"vocab_size": 30, "d_model": 16, "num_layers": 2, "dropout": 0.0, "initializer_range": 0.6, **settings},
        cell=cell,
        attention=attention,
        input_feeding=feeding,
        attention_window=window,
    )
    return RecurrentEncoderDecoderForConditionalGeneration(config).eval()


@pytest.fixture
def source():
    """Three sources: whole, padded behind and padded before."""
    torch.manual_seed(1)
    ids, mask = torch.randint(3, 30, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    mask[1, 5:] = 0
    mask[2, :3] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


@pytest.fixture
def labels():
    torch.manual_seed(2)
    return torch.randint(3, 30, (3, 6))


@pytest.mark.parametrize(("cell", "attention", "feeding", "window"), KINDS)
def test_padding_changes_nothing_and_every_weight_learns(cell, attention, feeding, window, source, labels):
    model = make(cell, attention, feeding, window)
    together = model(**source, labels=labels, output_attentions=True)
    together.loss.backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
    for row, words in ((1, slice(0, 5)), (2, slice(3, 7))):
        alone = model(input_ids=source["input_ids"][row : row + 1, words], labels=labels[row : row + 1])
        torch.testing.assert_close(alone.logits[0], together.logits[row], atol=1e-5, rtol=1e-5)
    if attention == "none":
        assert together.cross_attentions is None
    else:
        (weights,) = together.cross_attentions
        assert weights.shape == (3, 1, 6, 7) and not weights[1, ..., 5:].any() and not weights[2, ..., :3].any()
        if window is None:
            torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, 6))
        else:
            assert int((weights > 0).sum(-1).max()) <= 2 * window + 1


@pytest.mark.parametrize(("cell", "attention", "feeding", "window"), KINDS)
def test_word_by_word_is_as_all_at_once_and_no_word_sees_a_later_one(cell, attention, feeding, window, source, labels):
    model = make(cell, attention, feeding, window)
    inputs = model.prepare_decoder_input_ids_from_labels(labels)
    expected = model(**source, decoder_input_ids=inputs).logits
    state, encoded = None, model.get_encoder()(**source)
    for place in range(inputs.shape[1]):
        step = model(
            attention_mask=source["attention_mask"],
            encoder_outputs=encoded,
            decoder_input_ids=inputs[:, place : place + 1],
            cache=state,
            use_cache=True,
        )
        state = step[CACHE_FIELD]
        torch.testing.assert_close(step.logits[:, 0], expected[:, place], atol=1e-5, rtol=1e-5)
    assert state.get_seq_length() == inputs.shape[1]
    later = inputs.clone()
    later[:, 4:] = 5
    torch.testing.assert_close(model(**source, decoder_input_ids=later).logits[:, :4], expected[:, :4])


@pytest.mark.parametrize("attention", ["none", "luong-general"])
def test_padding_beside_a_target_leaves_the_state_as_it_is(attention, source, labels):
    model = make(attention=attention)
    inputs = model.prepare_decoder_input_ids_from_labels(labels)
    padded = torch.cat((torch.zeros(3, 2, dtype=torch.long), inputs), 1)
    mask = (torch.arange(8) >= 2).long().expand(3, 8)
    logits = model(**source, decoder_input_ids=padded, decoder_attention_mask=mask).logits
    expected = model(**source, decoder_input_ids=inputs).logits
    torch.testing.assert_close(logits[:, 2:], expected, atol=1e-5, rtol=1e-5)
    behind = {"decoder_input_ids": padded.flip(1), "decoder_attention_mask": mask.flip(1)}
    states = (model(**source, **read)[CACHE_FIELD] for read in (behind, {"decoder_input_ids": inputs.flip(1)}))
    torch.testing.assert_close(*(state.layers[0][0] for state in states))


def test_luongs_model_is_the_loop_written_out():
    """Luong et al. 2015, Eq. 5 to 8 and section 3.3, from the weights alone, a GRU of one layer, one sentence."""
    model = make("gru", "luong-general", num_layers=1, bidirectional=False)
    weights = dict(model.state_dict())
    source, target = torch.tensor([[4, 5, 6]]), torch.tensor([[1, 7, 8]])

    def gru(part, word, hidden):
        sums = weights[f"{part}.rnn.weight_ih_l0"] @ word + weights[f"{part}.rnn.bias_ih_l0"]
        kept = weights[f"{part}.rnn.weight_hh_l0"] @ hidden + weights[f"{part}.rnn.bias_hh_l0"]
        r, z = (sums[:32] + kept[:32]).sigmoid().split(16)
        return (1 - z) * (sums[32:] + r * kept[32:]).tanh() + z * hidden

    embedding = weights["lm_head.weight"]
    hidden, states = torch.zeros(16), []
    for word in source[0]:
        hidden = gru("model.encoder", embedding[word], hidden)
        states.append(hidden)
    encoded, fed, logits = torch.stack(states), torch.zeros(16), []
    for word in target[0]:
        hidden = gru("model.decoder", torch.cat((embedding[word], fed)), hidden)
        scores = encoded @ weights["model.decoder.attention.key_proj.weight"].T @ hidden
        context = scores.softmax(0) @ encoded
        fed = (weights["model.decoder.readout.weight"] @ torch.cat((context, hidden))).tanh()
        logits.append(embedding @ fed)
    expected = model(input_ids=source, decoder_input_ids=target).logits[0]
    torch.testing.assert_close(torch.stack(logits), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["bahdanau", "luong-general"])
def test_a_beam_with_a_state_is_the_one_without(attention, source):
    model, search = make(attention=attention), {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 12}
    assert torch.equal(model.generate(**source, **search), model.generate(**source, **search, use_cache=False))


@pytest.mark.parametrize(("cell", "attention", "feeding", "window"), KINDS)
def test_hypotheses_that_share_a_source_are_those_with_copies_of_it(cell, attention, feeding, window, source):
    model = make(cell, attention, feeding, window)
    settings = {"num_beams": 4, "num_return_sequences": 3, "return_dict_in_generate": True, "output_scores": True}
    shared = model.generate(**source, max_new_tokens=12, **settings)
    copies = {name: part.repeat_interleave(3, 0) for name, part in source.items()}
    log_p = model(**copies, decoder_input_ids=shared.sequences[:, :-1]).logits.log_softmax(-1)
    of_tokens = log_p.gather(2, shared.sequences[:, 1:, None])[..., 0]
    is_written = shared.beam_indices >= 0
    penalty = ((5 + is_written.sum(1)) / 6) ** 0.6
    torch.testing.assert_close(shared.sequences_scores, (of_tokens * is_written).sum(1) / penalty)


@pytest.mark.parametrize("beams", [1, 3])
def test_generate_takes_the_encoders_outputs_as_a_tuple(beams, source):
    model, mask = make(), source["attention_mask"]
    encoded = model.get_encoder()(**source)
    expected = model.generate(**source, num_beams=beams)
    for given in (encoded, encoded.to_tuple()):
        found = model.generate(encoder_outputs=given, attention_mask=mask, num_beams=beams)
        assert torch.equal(found, expected)


def test_a_saved_model_loads_by_the_auto_classes(tmp_path, source, labels):
    model = make("gru", "bahdanau")
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), RecurrentEncoderDecoderConfig)
    assert isinstance(AutoModel.from_pretrained(tmp_path), RecurrentEncoderDecoderModel)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.encoder.embedding.weight
    assert loaded.lm_head.weight is loaded.model.decoder.embedding.weight
    torch.testing.assert_close(loaded(**source, labels=labels).loss, model(**source, labels=labels).loss)


@pytest.mark.parametrize(
    "settings", [{"cell": "rnn"}, {"attention": "luong"}, {"attention_window": 3, "attention": "bahdanau"}], ids=str
)
def test_bad_settings_are_refused_by_name(settings):
    with pytest.raises((ValueError, StrictDataclassError), match=next(iter(settings))):
        RecurrentEncoderDecoderConfig(**settings)


def test_a_decoder_refuses_incomplete_encoder_outputs(source, labels):
    model = make()
    states = model.get_encoder()(**source).last_hidden_state
    with refused(ValueError, "encoder_outputs"):
        model(encoder_outputs=(states,), labels=labels)
    with refused(ValueError, "encoder_outputs"):
        model.generate(encoder_outputs=(states,))
    encoded = model.get_encoder()(**source).to_tuple()
    mask = source["attention_mask"]
    again = model(encoder_outputs=encoded, attention_mask=mask, labels=labels).loss
    torch.testing.assert_close(again, model(**source, labels=labels).loss)
    with refused(ValueError, "decoder_input_ids"):
        model(**source)
