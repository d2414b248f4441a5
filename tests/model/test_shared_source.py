"""The hypotheses of a sentence share its source. Each result is the same as if each hypothesis had its own copy."""

import copy

import peft
import pytest
import torch
from searches import END, INPUTS, PAD, LibraryModel, sentences, sharp
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask
from transformers.modeling_outputs import BaseModelOutput

from vanilla_transformer.model.modeling_vanilla_transformer import CACHE_FIELD, scaled_dot_product_attention

MASK = INPUTS["attention_mask"]
# The same search for both classes.
SETTINGS = {"length_penalty": 1.0, "early_stopping": "never", "max_new_tokens": 9, "return_dict_in_generate": True}
OPTIONS = {
    "beam": {"num_beams": 4},
    "all hypotheses": {"num_beams": 4, "num_return_sequences": 4},
    "samples": {"do_sample": True, "num_beams": 1, "num_return_sequences": 3},
    "sampled beam": {"do_sample": True, "num_beams": 3},
    "static cache": {"num_beams": 4, "cache_implementation": "static"},
    "no cache": {"num_beams": 4, "use_cache": False},
    "prompt": {
        "num_beams": 3,
        "decoder_input_ids": torch.tensor([[PAD, 1, 5], [PAD, PAD, 1], [1, 7, 8]]),
        "decoder_attention_mask": torch.tensor([[0, 1, 1], [0, 0, 1], [1, 1, 1]]),
    },
    "scores": {"num_beams": 4, "num_return_sequences": 2, "output_scores": True, "output_logits": True},
}


def expected_of(model, call: dict) -> object:
    """The result of transformers' own decoding, with the same weights."""
    library = LibraryModel(model.config).eval()
    library.load_state_dict(model.state_dict())
    library.set_attn_implementation("eager")
    library.generation_config = copy.deepcopy(model.generation_config)
    for name in ("length_penalty_type", "max_length_beyond_source", "length_penalty", "early_stopping"):
        setattr(library.generation_config, name, None)
    if call.get("num_beams") == 1:
        call = {name: value for name, value in call.items() if name not in ("length_penalty", "early_stopping")}
    torch.manual_seed(5)
    return library.generate(**INPUTS, **call)


def found_by(model, call: dict) -> object:
    torch.manual_seed(5)
    if call.get("num_beams") != 1:
        call = {**call, "length_penalty_type": "huggingface"}
    return model.generate(**INPUTS, **call)


def assert_equal(found, expected) -> None:
    width = min(found.sequences.shape[1], expected.sequences.shape[1])
    # transformers fills what is shorter with `</s>`, because the id of padding is 0.
    for ours, theirs in zip(found.sequences[:, :width].tolist(), expected.sequences[:, :width].tolist(), strict=True):
        written = ours.index(END, 1) + 1 if END in ours[1:] else width
        assert ours[:written] == theirs[:written]
    if found.get("sequences_scores") is not None:
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)
        for ours, theirs in zip(found.logits, expected.logits, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager", "flex_attention"])
@torch.compiler.set_stance("force_eager")  # Kernels of flex attention take a minute to compile on a CPU.
def test_options_and_attention_functions(implementation: str, option: str):
    model, call = sharp(0), {**SETTINGS, **OPTIONS[option]}
    model.set_attn_implementation(implementation)
    if (implementation, option) == ("flex_attention", "static cache"):
        with pytest.raises(ValueError, match="flex_attention cannot be combined with a static cache"):
            found_by(model, call)
        return
    found = found_by(model, call)
    assert_equal(found, expected_of(model, call))
    if option == "beam":
        cache = found[CACHE_FIELD]
        rows = {len(layer.keys) for layer in cache.cross_attention_cache.layers}
        assert rows == {len(MASK)} and {len(layer.keys) for layer in cache.self_attention_cache.layers} == {12}


def only_one_query(module, query, key, value, attention_mask, **kwargs):
    """Attention as of flash attention: it reads padding from a mask over the keys and supports one query per row."""
    if attention_mask is not None:
        assert attention_mask.shape == (len(key), key.shape[2]) and query.shape[2] in (1, key.shape[2])
        bias = torch.zeros(attention_mask.shape).masked_fill(~attention_mask.bool(), -torch.inf)
        attention_mask = bias[:, None, None]
    return scaled_dot_product_attention(module, query, key, value, attention_mask, **kwargs)


@pytest.mark.parametrize("option", ["beam", "samples"])
def test_a_mask_with_one_row_per_query_is_repeated(option: str, monkeypatch):
    monkeypatch.setattr(AttentionInterface, "_global_mapping", {**AttentionInterface._global_mapping})
    AttentionInterface.register("unpadding", only_one_query)
    AttentionMaskInterface.register("unpadding", flash_attention_mask)
    model, call = sharp(0), {**SETTINGS, **OPTIONS[option]}
    expected = found_by(model, call)
    model.set_attn_implementation("unpadding")
    assert torch.equal(found_by(model, call).sequences, expected.sequences)


def test_attention_weights_have_one_row_per_hypothesis():
    model = sharp(0)
    model.set_attn_implementation("eager")
    call = {**SETTINGS, "num_beams": 3, "output_attentions": True, "max_new_tokens": 4}
    found, expected = found_by(model, call), expected_of(model, call)
    for ours, theirs in zip(found.cross_attentions, expected.cross_attentions, strict=True):
        for layer, of_theirs in zip(ours, theirs, strict=True):
            torch.testing.assert_close(layer, of_theirs)


def test_states_of_the_encoder_are_not_copied():
    model = sharp(0)
    encoded = BaseModelOutput(model.get_encoder()(**INPUTS).last_hidden_state.detach())
    seen = []
    model.model.decoder.register_forward_pre_hook(
        lambda module, args, given: seen.append(given["encoder_hidden_states"].data_ptr()), with_kwargs=True
    )
    found = model.generate(encoder_outputs=encoded, attention_mask=MASK, max_new_tokens=5)
    assert torch.equal(found, sharp(0).generate(**INPUTS, max_new_tokens=5))
    assert set(seen) == {encoded.last_hidden_state.data_ptr()}


def test_forward_takes_more_rows_of_targets_than_sources():
    model, targets = sharp(0), torch.randint(3, 99, (6, 4), generator=torch.Generator().manual_seed(0))
    encoded = model.get_encoder()(**INPUTS)
    found = model(encoder_outputs=encoded, attention_mask=MASK, decoder_input_ids=targets).logits
    copies = {name: part.repeat_interleave(2, 0) for name, part in INPUTS.items()}
    torch.testing.assert_close(found, model(**copies, decoder_input_ids=targets).logits)


def test_an_adapter_shares_a_source():
    settings = {"r": 4, "target_modules": ["q_proj", "k_proj", "v_proj", "out_proj"], "init_lora_weights": False}
    adapted = peft.get_peft_model(sharp(0), peft.LoraConfig(task_type="SEQ_2_SEQ_LM", **settings)).eval()
    merged = copy.deepcopy(adapted).merge_and_unload()
    call = {**SETTINGS, "num_beams": 4}
    assert torch.equal(found_by(adapted, call).sequences, found_by(merged, call).sequences)
    assert not torch.equal(found_by(merged, call).sequences, found_by(sharp(0), call).sequences)


def test_a_model_inside_data_parallel_shares_a_source():
    model, call = sharp(0), {**SETTINGS, "num_beams": 4}
    assert torch.equal(found_by(nn.DataParallel(model).module, call).sequences, found_by(model, call).sequences)


@pytest.mark.parametrize("option", ["beam", "static cache", "samples"])
def test_a_compiled_forward_shares_a_source(option: str):
    model, call = sharp(0), {**SETTINGS, **OPTIONS[option]}
    expected = found_by(model, call).sequences
    model.forward = torch.compile(model.forward, backend="eager")
    assert torch.equal(found_by(model, call).sequences, expected)


def test_a_prompt_with_an_assistant_is_decoded():
    model, source = sharp(0), sentences(3, [6], "right")
    expected = model.generate(**source, num_beams=1, max_new_tokens=12)
    for asked in ({"assistant_model": sharp(9)}, {"prompt_lookup_num_tokens": 2}):
        assert torch.equal(model.generate(**source, num_beams=1, max_new_tokens=12, **asked), expected)


def test_a_release_without_one_of_the_two_methods_gives_the_same_or_an_error(monkeypatch):
    model, call = sharp(0), {**SETTINGS, "num_beams": 4}
    expected = found_by(model, call).sequences
    kind = type(model)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "_expand_inputs_for_generation", LibraryModel._expand_inputs_for_generation)
        assert torch.equal(found_by(model, call).sequences, expected)
    monkeypatch.setattr(kind, "_reorder_cache", LibraryModel._reorder_cache)
    with pytest.raises(IndexError):
        found_by(model, call)
