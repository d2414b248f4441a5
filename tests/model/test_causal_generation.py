"""Language models decode after prompts of any length, and from a cache."""

import pytest
import torch
from searches import END, PAD, WORDS, sentences, sharp

from vanilla_transformer import VanillaTransformerDecoderForCausalLM
from vanilla_transformer.model.modeling_vanilla_transformer import CACHE_FIELD

ENDS = [END, *range(20, WORDS, 8)]


def language_model(**fields):
    """If its embeddings were tied, it would repeat its last token."""
    settings = {"tie_word_embeddings": False, "eos_token_id": ENDS, **fields}
    return sharp(0, VanillaTransformerDecoderForCausalLM, **settings)


def prompts(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Random prompts that are padded on the left."""
    ended = sentences(0, [length + 1 for length in lengths], "left")
    return {name: part[:, :-1] for name, part in ended.items()}


INPUTS = prompts([5, 3, 2])


@pytest.mark.parametrize("fields", [{}, {"positional_encoding": "learned", "max_position_embeddings": 64}], ids=str)
@pytest.mark.parametrize("settings", [{}, {"num_beams": 4}, {"cache_implementation": "static"}], ids=str)
def test_a_prompt_in_a_batch_is_continued_as_without_others(fields: dict, settings: dict):
    model = language_model(**fields)
    together = model.generate(**INPUTS, max_new_tokens=12, **settings)
    for row, mask in enumerate(INPUTS["attention_mask"]):
        prompt = INPUTS["input_ids"][row, mask.bool()][None]
        found = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, **settings)[0]
        new = found[prompt.shape[1] :]
        assert torch.equal(together[row, len(mask) :][: len(new)], new)
        assert set(together[row, len(mask) + len(new) :].tolist()) <= {PAD, *ENDS}


def test_generate_continues_from_a_cache():
    model = language_model()
    asked = {"suppress_tokens": ENDS, "return_dict_in_generate": True}
    whole = model.generate(**INPUTS, **asked, max_new_tokens=6).sequences
    part = model.generate(**INPUTS, **asked, max_new_tokens=3)
    mask = torch.cat((INPUTS["attention_mask"], torch.ones(3, 3, dtype=torch.long)), 1)
    rest = model.generate(
        part.sequences, attention_mask=mask, **asked, max_new_tokens=3, **{CACHE_FIELD: part[CACHE_FIELD]}
    )
    assert torch.equal(rest.sequences, whole)
