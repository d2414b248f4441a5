"""Which calls the engine runs and which the library, and what the engine gives in other types."""

from unittest.mock import Mock

import pytest
import torch
from searches import INPUTS, START, WORDS, Never, sentences, sharp
from transformers import GenerationConfig, LogitsProcessorList

FAST = {
    "nothing asked for": {},
    "greedy": {"num_beams": 1},
    "several hypotheses": {"num_beams": 5, "num_return_sequences": 5},
    "the library's penalty": {"length_penalty_type": "huggingface", "length_penalty": 2.0},
    "early stopping": {"early_stopping": True},
    "a length": {"max_new_tokens": 4, "min_new_tokens": 4},
    "constraints on a row's own tokens": {"no_repeat_ngram_size": 2, "bad_words_ids": [[5]], "suppress_tokens": [9]},
    "a prefix": {"decoder_input_ids": torch.tensor([[START, 9]]).expand(3, -1)},
    "sampling": {"do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 0.7},
    "a dictionary": {"return_dict_in_generate": True},
    "a configuration": {"generation_config": GenerationConfig(num_beams=2)},
}
LIBRARY = {
    "scores of all steps": {"output_scores": True, "return_dict_in_generate": True},
    "attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "the cache of a greedy search": {"return_dict_in_generate": True, "num_beams": 1},
    "no cache": {"use_cache": False},
    "a static cache": {"cache_implementation": "static", "num_beams": 1},
    "a streamer": {"streamer": Mock(), "num_beams": 1, "input_ids": torch.tensor([[9, 2]]), "attention_mask": None},
    "a processor of one's own": {"logits_processor": LogitsProcessorList([Never()])},
    "a time": {"max_time": 100.0},
    "a beam as wide as the vocabulary": {"num_beams": WORDS},
}


@pytest.mark.parametrize("way", ["engine", "library"])
def test_each_call_goes_the_way_that_is_said_here(ways_taken, way: str):
    model = sharp(0)
    model.set_attn_implementation("eager")
    for name, asked in {"engine": FAST, "library": LIBRARY}[way].items():
        ways_taken.clear()
        model.generate(**{**INPUTS, "max_new_tokens": 6, **asked})
        assert ways_taken == [way], name


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_every_grad_mode_finds_the_same(mode):
    expected = sharp(1).generate(**INPUTS)
    model = sharp(1)
    with mode():
        found = model.generate(**INPUTS)
    assert torch.equal(found, expected)
    assert torch.equal(model.generate(**INPUTS), expected)
    model.train()
    model(**INPUTS, labels=INPUTS["input_ids"]).loss.backward()


@pytest.mark.processor
@pytest.mark.parametrize("how", ["bfloat16 weights", "autocast"])
def test_bfloat16_computes_in_bfloat16(ways_taken, how: str):
    wanted = {**sentences(3, [6, 9, 4, 5], "right"), "return_dict_in_generate": True, "max_new_tokens": 8}
    expected = sharp(4).generate(**wanted).sequences_scores
    model = sharp(4)
    if how == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            found = model.generate(**wanted).sequences_scores
    else:
        found = model.to(torch.bfloat16).generate(**wanted).sequences_scores
    assert ways_taken == ["engine", "engine"]
    assert 1e-5 < (found - expected).abs().max() < 0.2
