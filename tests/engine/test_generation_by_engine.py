"""Which calls the engine runs and which the library, and what the engine gives in other types."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from refusals import refused
from searches import INPUTS, START, WORDS, Never, sentences, sharp
from transformers import GenerationConfig, LogitsProcessorList

from vanilla_transformer import VanillaTransformerForConditionalGeneration

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
    "weights of 8 bits": {"quantization": "int8"},
    "a configuration": {"generation_config": GenerationConfig(num_beams=2, quantization="int8")},
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


@pytest.mark.processor
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_8_bits_find_nearly_the_same(dtype: torch.dtype):
    wanted = {**sentences(3, [6, 9, 4, 5], "right"), "return_dict_in_generate": True, "max_new_tokens": 8}
    sizes = {"d_model": 64, "d_ff": 128, "attention_bias": True, "activation_function": "gelu"}
    expected = sharp(4, **sizes).generate(**wanted)
    found = sharp(4, **sizes).to(dtype).generate(**wanted, quantization="int8")
    assert 1e-5 < (found.sequences_scores - expected.sequences_scores).abs().max() < 0.2


def test_8_bits_are_refused_with_what_only_the_library_does():
    model = sharp(0)
    for asked, named in (
        ({"output_logits": True}, "output_logits"),
        ({"prefix_allowed_tokens_fn": lambda *_: [3]}, "PrefixConstrainedLogitsProcessor"),
    ):
        with refused(ValueError, "int8", named):
            model.generate(**INPUTS, quantization="int8", **asked)
        with model.frozen("int8"), refused(ValueError, "int8", named):
            model.generate(**INPUTS, **asked)
    with refused(ValueError, "int4"):
        model.generate(**INPUTS, quantization="int4")
    with refused(ValueError, "int4"), model.frozen("int4"):
        pass


@pytest.mark.parametrize("missing", [object(), SimpleNamespace(engine="none")], ids=["operators", "engine"])
def test_8_bits_are_refused_by_a_torch_without_them(monkeypatch, missing: object):
    monkeypatch.setattr(torch.backends if hasattr(missing, "engine") else torch.ops, "quantized", missing)
    with refused(ValueError, "int8", "torch"):
        sharp(0).generate(**INPUTS, quantization="int8")
    with refused(ValueError, "int8", "torch"), sharp(0).frozen("int8"):
        pass


def test_quantization_can_be_the_models_own_setting(tmp_path):
    model = sharp(0, d_model=64)
    model.generation_config.quantization = "int8"
    model.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.generation_config.quantization == "int8"
    assert torch.equal(loaded.generate(**INPUTS), model.generate(**INPUTS))
    assert torch.equal(sharp(0, d_model=64).generate(**INPUTS, quantization="int8"), model.generate(**INPUTS))
