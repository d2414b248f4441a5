"""Language models: the fast path of `generate` against the library's own search, after prompts of any lengths."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from searches import ARCHITECTURES, END, PAD, WORDS, CausalLibrarySearch, assert_same, sentences, sharp
from transformers import DynamicCache, GenerationConfig

from vanilla_transformer import VanillaTransformerDecoderForCausalLM
from vanilla_transformer.model.modeling_vanilla_transformer import CACHE_FIELD

ENDS = [END, *range(20, WORDS, 8)]


def language_model(seed: int, cls=VanillaTransformerDecoderForCausalLM, **fields):
    """Tied, it would repeat its last token for ever."""
    return sharp(seed, cls, **{"tie_word_embeddings": False, "eos_token_id": ENDS, **fields})


def prompts(seed: int, lengths: list[int]) -> dict[str, torch.Tensor]:
    """Random prompts that end where their rows do."""
    ended = sentences(seed, [length + 1 for length in lengths], "left")
    return {name: part[:, :-1] for name, part in ended.items()}


LENGTHS = st.one_of(
    st.lists(st.integers(1, 9), min_size=1, max_size=6), st.lists(st.integers(1, 5), min_size=9, max_size=11)
)
SETTINGS = {
    "max_new_tokens": st.integers(1, 20),
    "min_new_tokens": st.integers(1, 6),
    "no_repeat_ngram_size": st.just(2),
    "repetition_penalty": st.sampled_from([0.8, 1.3]),
    "bad_words_ids": st.just([[5], [3, 7]]),
    "suppress_tokens": st.just([PAD, 17]),
    "eos_token_id": st.just([END, 7]),
    "forced_eos_token_id": st.just(END),
}


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    architecture=ARCHITECTURES,
    beams=st.integers(2, 6),
    returned=st.integers(1, 2),
    early_stopping=st.sampled_from(["never", True, False]),
    search=st.fixed_dictionaries({}, optional=SETTINGS),
    alpha=st.sampled_from([-0.5, 0.0, 0.6, 1.0, 1.7]),
    lengths=LENGTHS,
)
def test_beam_search_is_the_librarys(seed, architecture, beams, returned, early_stopping, search, alpha, lengths):
    if "repetition_penalty" in search:
        lengths = lengths[:1] * len(lengths)
    wanted = {**prompts(seed, lengths), **search, "return_dict_in_generate": True}
    wanted |= {"num_beams": beams, "num_return_sequences": returned, "early_stopping": early_stopping}
    ours = language_model(seed, **architecture).generate(**wanted, length_penalty=alpha)
    theirs = language_model(seed, CausalLibrarySearch, **architecture)
    assert_same(ours, theirs.generate(**wanted, length_penalty=alpha, output_scores=True))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    architecture=ARCHITECTURES,
    lengths=LENGTHS,
    search=st.fixed_dictionaries({}, optional=SETTINGS),
    drawn=st.sampled_from(
        [{}, {"do_sample": True}, {"do_sample": True, "temperature": 0.7, "top_k": 9, "num_return_sequences": 2}]
    ),
)
def test_greedy_search_and_samples_are_the_librarys(seed, architecture, lengths, search, drawn):
    wanted, found = {**prompts(seed, lengths), **search, **drawn}, []
    for cls in (VanillaTransformerDecoderForCausalLM, CausalLibrarySearch):
        model = language_model(seed, cls, **architecture)
        torch.manual_seed(seed)
        found.append(model.generate(**wanted))
    assert torch.equal(*found)


INPUTS = prompts(0, [5, 3, 2])
ENGINE = {
    "no mask": {"attention_mask": None, "input_ids": torch.tensor([[5, 9], [7, 8]])},
    "no prompt": {"attention_mask": None, "input_ids": None},
    "a beam": {"num_beams": 4, "length_penalty": 0.6},
    "several samples": {"do_sample": True, "num_return_sequences": 3},
    "positions that count tokens": {"position_ids": (INPUTS["attention_mask"].cumsum(1) - 1).clamp(min=0)},
    "a configuration": {"generation_config": GenerationConfig(num_beams=2, eos_token_id=END, pad_token_id=PAD)},
}
LIBRARY = {
    "a beam that is sampled": {"do_sample": True, "num_beams": 3},
    "a penalty that passes over padding": {"repetition_penalty": 1.2},
    "embeddings": {"inputs_embeds": torch.randn(3, 5, 16), "input_ids": None},
    "padding on the right": {name: part.flip(1) for name, part in INPUTS.items()},
    "a prompt of padding": {"attention_mask": INPUTS["attention_mask"] * torch.tensor([[1], [0], [1]])},
    "positions of one's own": {"position_ids": torch.tensor([[3, 4, 5, 6, 7]]).expand(3, -1)},
}


@pytest.mark.parametrize("way", ["engine", "library"])
def test_each_call_goes_the_way_that_is_said_here(ways_taken, way: str):
    for name, asked in {"engine": ENGINE, "library": LIBRARY}[way].items():
        ways_taken.clear()
        language_model(0).generate(**{**INPUTS, "max_new_tokens": 4, **asked})
        assert ways_taken == [way], name


def test_the_library_goes_on_from_a_cache(ways_taken):
    model = language_model(0)
    asked = {"suppress_tokens": ENDS, "return_dict_in_generate": True}
    whole = model.generate(**INPUTS, **asked, max_new_tokens=6).sequences
    part = model.generate(**INPUTS, **asked, max_new_tokens=3)
    mask = torch.cat((INPUTS["attention_mask"], torch.ones(3, 3, dtype=torch.long)), 1)
    rest = model.generate(
        part.sequences, attention_mask=mask, **asked, max_new_tokens=3, **{CACHE_FIELD: part[CACHE_FIELD]}
    )
    assert torch.equal(rest.sequences, whole)
    assert ways_taken == ["library"] * 3
    model.generate(**INPUTS, max_new_tokens=2, **{CACHE_FIELD: DynamicCache(config=model.config)})
    assert ways_taken[-1] == "engine"
