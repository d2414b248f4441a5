"""Unusual calls of `generate`: each gives what transformers' own decoding gives, or the same error."""

import pytest
import torch
from accelerate import cpu_offload
from searches import END, INPUTS, PAD, WORDS, LibraryModel, sharp
from small_models import random_model
from transformers import EosTokenCriteria, GenerationConfig, StoppingCriteria, StoppingCriteriaList
from transformers.modeling_outputs import BaseModelOutput

from vanilla_transformer.graph.settings import limit_of_new_tokens

IDS, MASK = INPUTS["input_ids"], INPUTS["attention_mask"]
# The paper's settings, as arguments for the generate of transformers.
PAPER = {"num_beams": 4, "length_penalty": 1.0, "early_stopping": "never"}


@pytest.fixture(scope="module")
def model():
    return sharp(0)


def until_end(rows: torch.Tensor) -> list[list[int]]:
    return [row[: row.index(END) + 1] if END in row else row for row in rows.tolist()]


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
def test_the_type_of_ids_and_mask_changes_nothing(model, call):
    plain = {name: value for name, value in call.items() if isinstance(value, int)}
    assert torch.equal(model.generate(**{**INPUTS, **call}), model.generate(**INPUTS, **plain))


@pytest.mark.parametrize(
    "call",
    [
        {"suppress_tokens": []},
        {"begin_suppress_tokens": []},
        {"bad_words_ids": [[END]]},
        {"forced_eos_token_id": END, "suppress_tokens": [PAD]},
        {"forced_eos_token_id": END, "num_beams": 1},
        {"encoder_no_repeat_ngram_size": 1},
        {
            "exponential_decay_length_penalty": (2, 1.5),
            "stopping_criteria": StoppingCriteriaList([EosTokenCriteria([9])]),
            "max_new_tokens": 60,
        },
        {"suppress_tokens": [PAD, END, *range(12, WORDS)], "no_repeat_ngram_size": 1, "max_new_tokens": 30},
        {"suppress_tokens": [*range(WORDS)]},
    ],
    ids=lambda call: " ".join(call),
)
def test_unusual_settings_are_those_of_transformers(model, call):
    call = {**INPUTS, "max_new_tokens": 9, **call}
    theirs = call if call.get("num_beams") == 1 else {**PAPER, **call}
    expected = sharp(0, LibraryModel).generate(**{**theirs, "length_penalty_type": None})
    settings = {} if call.get("num_beams") == 1 else {"length_penalty_type": "huggingface", "length_penalty": 1.0}
    assert until_end(model.generate(**call, **settings)) == until_end(expected)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ({"max_new_tokens": 0}, ValueError),
        ({"max_new_tokens": -1}, ValueError),
        ({"early_stopping": "foo"}, ValueError),
        ({"max_length_beyond_source": -100}, ValueError),
        ({"forced_eos_token_id": END, "suppress_tokens": [END, 17], "max_new_tokens": 9}, ValueError),
        ({"max_new_tokens": 3.5}, TypeError),
        ({"length_penalty": 1e9}, (OverflowError, RuntimeError)),
    ],
    ids=str,
)
def test_impossible_settings_are_errors(model, call, error):
    with pytest.raises(error):
        model.generate(**INPUTS, **call)


def test_a_sentence_is_cut_at_its_own_limit_where_an_end_is_forced_at_others(model):
    call = {"forced_eos_token_id": END, "max_length_beyond_source": 0}
    single = model.generate(IDS[2:, :2], attention_mask=MASK[2:, :2], **call)[0]
    in_batch = model.generate(**INPUTS, **call)[2]
    assert END not in single and torch.equal(in_batch[: len(single)], single)
    assert (in_batch[len(single) :] == PAD).all()


def test_encoder_outputs_may_be_a_tuple_and_given_again(model):
    with torch.no_grad():
        states = model.get_encoder()(**INPUTS).last_hidden_state
    expected, kept = model.generate(**INPUTS, max_new_tokens=9), states.clone()
    whole = BaseModelOutput(states)
    for given in ((states,), whole, whole):
        found = model.generate(encoder_outputs=given, attention_mask=MASK, max_new_tokens=9)
        assert torch.equal(found, expected)
    assert torch.equal(whole.last_hidden_state, kept)  # A caller's object is not changed.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_torchs_default_dtype_changes_nothing(model, dtype):
    def generate():
        return [model.generate(**INPUTS, max_new_tokens=9, num_beams=beams) for beams in (1, 4)]

    before = generate()
    torch.set_default_dtype(dtype)
    try:
        assert all(map(torch.equal, generate(), before))
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_offloaded_model_decodes_as_before():
    expected = sharp(0).generate(**INPUTS)
    offloaded = cpu_offload(sharp(0), execution_device="cpu")
    assert torch.equal(offloaded.generate(**INPUTS), expected)


class OwnLimit(StoppingCriteria):
    """A caller's criterion whose attributes have the same names as the attributes of `SourceLengthLimit`."""

    limits, prompt_length = torch.tensor([1, 1, 1]), 1

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= 6)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_callers_criterion_is_used_whatever_its_attributes_are_called(model, beams: int):
    plain = type("Plain", (StoppingCriteria,), {"__call__": OwnLimit.__call__})
    settings = {"num_beams": beams, "suppress_tokens": [END]}
    expected, found = (
        model.generate(**INPUTS, **settings, stopping_criteria=StoppingCriteriaList([kind()]))
        for kind in (plain, OwnLimit)
    )
    assert torch.equal(found, expected) and found.shape[1] == 6


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
