"""One call of `generate` has one result: by the engine, and by the library's search."""

from contextlib import nullcontext

import pytest
import torch
from accelerate import cpu_offload
from searches import END, INPUTS, PAD, WORDS, sharp, without_engine
from transformers import EosTokenCriteria, StoppingCriteriaList
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vanilla_transformer.engine.stacks import SearchDecoder

IDS, MASK = INPUTS["input_ids"], INPUTS["attention_mask"]


@pytest.fixture(scope="module")
def model():
    return sharp(0)


@pytest.fixture(params=["engine", "library"])
def way(request):
    """Enters the way that a call takes."""
    return {"engine": nullcontext, "library": without_engine}[request.param]


def by_library(model, **call):
    with without_engine():
        return model.generate(**{**INPUTS, **call})


@pytest.mark.parametrize(
    "call",
    [
        {"attention_mask": MASK.bool(), "max_new_tokens": 30},
        {"attention_mask": MASK.to(torch.int8), "max_new_tokens": 130, "num_beams": 1},
        {"attention_mask": MASK.float()},
        {"attention_mask": MASK.to(torch.uint8)},
        {"input_ids": IDS.int()},
    ],
    ids=["bool", "int8", "float", "uint8", "int32 ids"],
)
def test_the_type_of_ids_and_mask_changes_nothing(model, way, call):
    plain = {name: value for name, value in call.items() if isinstance(value, int)}
    with way():
        assert torch.equal(model.generate(**{**INPUTS, **call}), by_library(model, **plain))


@pytest.mark.parametrize(
    "call",
    [
        {"suppress_tokens": [], "max_new_tokens": 9},
        {"begin_suppress_tokens": [], "max_new_tokens": 9},
        {"bad_words_ids": [[END]], "max_new_tokens": 9},
        {"forced_eos_token_id": END, "max_length_beyond_source": 0, "suppress_tokens": [PAD]},
        {"forced_eos_token_id": END, "max_length_beyond_source": 0, "num_beams": 1},
        {
            "exponential_decay_length_penalty": (2, 1.5),
            "stopping_criteria": StoppingCriteriaList([EosTokenCriteria([9])]),
            "max_new_tokens": 60,
        },
    ],
    ids=["suppress", "begin", "bad words", "forced end", "greedily", "scores beyond 1e9"],
)
def test_unusual_settings_are_the_librarys(model, way, call):
    with way():
        assert torch.equal(model.generate(**INPUTS, **call), by_library(model, **call))


@pytest.mark.parametrize(
    "call",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": -1},
        {"early_stopping": "foo"},
        {"max_length_beyond_source": -100},
        {"forced_eos_token_id": END, "suppress_tokens": [END, 17], "max_new_tokens": 9},
    ],
    ids=str,
)
def test_what_the_library_refuses_is_refused(model, way, call):
    with way(), pytest.raises(ValueError):
        model.generate(**INPUTS, **call)


@pytest.mark.parametrize(
    "call", [{"max_new_tokens": 3.5}, {"num_return_sequences": 0}, {"length_penalty": 1e9}], ids=str
)
def test_what_the_librarys_search_fails_at_fails_there(model, way, call):
    asked = {**INPUTS, "max_new_tokens": 9, **call}
    with pytest.raises((TypeError, RuntimeError, OverflowError)) as by_library, without_engine():
        model.generate(**asked)
    with way(), pytest.raises(by_library.type) as found:
        model.generate(**asked)
    assert str(found.value) == str(by_library.value)


def test_where_every_hypothesis_becomes_impossible_the_result_is_the_librarys(model, way):
    few = {"suppress_tokens": [PAD, END, *range(12, WORDS)], "no_repeat_ngram_size": 1, "max_new_tokens": 30}
    expected = by_library(model, **few)
    with way():
        assert torch.equal(model.generate(**INPUTS, **few), expected) and expected.shape[1] > 5


def test_a_search_without_a_possible_token_ends(model, way):
    with way():
        assert (model.generate(**INPUTS, suppress_tokens=[*range(WORDS)], max_new_tokens=9)[:, 1:] == PAD).all()


def test_a_sentence_is_cut_at_its_own_limit_where_an_end_is_forced_at_others(model, way):
    call = {"forced_eos_token_id": END, "max_length_beyond_source": 0}
    with way():
        alone = model.generate(IDS[2:, :2], attention_mask=MASK[2:, :2], **call)[0]
        beside = model.generate(**INPUTS, **call)[2]
    assert END not in alone and torch.equal(beside[: len(alone)], alone) and (beside[len(alone) :] == PAD).all()


def test_encoder_outputs_may_be_a_tuple_and_given_again(model, way):
    with torch.no_grad():
        states = model.get_encoder()(**INPUTS).last_hidden_state
    expected = by_library(model, max_new_tokens=9)
    whole = BaseModelOutput(states)
    for given in ((states,), whole, whole):  # A caller's stays as it is.
        with way():
            found = model.generate(encoder_outputs=given, attention_mask=MASK, max_new_tokens=9)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_torchs_default_dtype_changes_nothing(model, way, dtype):
    asked = [{"max_new_tokens": 9, "num_beams": beams} for beams in (1, 4)]

    def generate():
        with way():
            return [model.generate(**INPUTS, **call) for call in asked]

    before = generate()
    torch.set_default_dtype(dtype)
    try:
        assert all(map(torch.equal, generate(), before))
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_long_search_is_the_librarys_though_its_cache_is_cut_again_and_again(monkeypatch):
    """With hypotheses that descend from few of those before them, and sentences that end long before others."""
    sizes, update = [], SearchDecoder.update
    monkeypatch.setattr(SearchDecoder, "update", lambda cache, *new: sizes.append(cache.used) or update(cache, *new))
    # In float64: with near ties rounding decides over long hypotheses.
    model, call = sharp(5).double(), {"num_beams": 5, "max_length_beyond_source": 90, "no_repeat_ngram_size": 3}
    expected = by_library(model, **call)
    found = model.generate(**INPUTS, **call)
    assert torch.equal(found, expected)
    assert found.shape[1] > 60 and max(sizes) < 2 * found.shape[1]


def test_an_offloaded_model_decodes_as_before():
    expected = sharp(0).generate(**INPUTS)
    offloaded = cpu_offload(sharp(0), execution_device="cpu")
    assert torch.equal(offloaded.generate(**INPUTS), expected)


def test_a_replaced_attention_function_decodes(model, monkeypatch):
    library, calls = ALL_ATTENTION_FUNCTIONS["sdpa"], []

    def watched(*args, **kwargs):
        calls.append(args)
        return library(*args, **kwargs)

    expected = model.generate(**INPUTS)
    assert not calls
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", watched)
    assert torch.equal(model.generate(**INPUTS), expected) and calls
