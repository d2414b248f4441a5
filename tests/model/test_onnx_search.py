"""The search of one sentence in one session: which calls it does, and that it finds what other searches find."""

import copy
import threading

import numpy as np
import pytest
import torch
from engines import computed_by
from library_search import Google, LibrarySearch
from test_fast_generation import END, assert_same, sentences, sharp

from vanilla_transformer.model import planned_search
from vanilla_transformer.model.onnx_search import SentenceSearch

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed: pip install 'vanilla-transformer[export]'")
ARCHITECTURES = {
    "the paper's": {},
    "learned positions": {"positional_encoding": "learned", "max_position_embeddings": 64},
    "biases": {"attention_bias": True, "output_bias": True},
    "three embeddings, one head": {"tie_word_embeddings": False, "num_heads": 1},
    "narrow heads": {"d_k": 3, "d_v": 3},
}
CALLS = {
    "the paper's": {},
    "all of a beam": {"num_return_sequences": 4},
    "many ends": {"num_beams": 3, "eos_token_id": [END, *range(50, 90)]},
    "the first that end": {"num_beams": 5, "early_stopping": True, "num_return_sequences": 2},
    "the library's penalty": {"length_penalty_type": "huggingface", "length_penalty": 1.0, "early_stopping": False},
    "long ones preferred": {"length_penalty": -1.0},
    "a step": {"max_new_tokens": 1},
    "a limit": {"num_beams": 2, "max_new_tokens": 4, "num_return_sequences": 2},
    "greedy": {"num_beams": 1},
    "greedy with a limit": {"num_beams": 1, "max_new_tokens": 3},
    "greedy with many ends": {"num_beams": 1, "eos_token_id": [END, *range(50, 90)]},
}


@pytest.fixture
def searched(monkeypatch) -> list[str]:
    """The searches done in one session."""
    done: list[str] = []
    for name in ("greedy_search", "beam_search"):
        search = getattr(SentenceSearch, name)

        def searching(self, *args, name=name, search=search, **kwargs):
            done.append(name)
            return search(self, *args, **kwargs)

        monkeypatch.setattr(SentenceSearch, name, searching)
    return done


def assert_same_found(ours, theirs) -> None:
    """The same sequences, and scores or caches."""
    if "sequences_scores" in ours:
        assert_same(ours, theirs)
        return
    assert torch.equal(ours.sequences, theirs.sequences)
    for kept, expected in zip(ours.past_key_values, theirs.past_key_values, strict=True):
        for tensor, other in zip(kept, expected, strict=True):
            if isinstance(tensor, torch.Tensor):
                torch.testing.assert_close(tensor, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_it_finds_what_torch_finds(searched, architecture: dict, call: dict):
    model = sharp(3, **architecture)
    for seed, length in ((0, 5), (1, 2), (2, 9)):
        asked = {**sentences(seed, [length], "right"), **call, "return_dict_in_generate": True}
        first, again = model.generate(**asked), model.generate(**asked)
        assert len(searched) == 2, "the first call is done as the second is"
        assert torch.equal(model.generate(**asked | {"return_dict_in_generate": False}), again.sequences)
        with computed_by("torch"):
            theirs = model.generate(**asked)
        assert len(searched) == 3
        searched.clear()
        assert_same_found(again, theirs)
        assert torch.equal(first.sequences, again.sequences)
        if "sequences_scores" in first:
            assert torch.equal(first.sequences_scores, again.sequences_scores)


@pytest.mark.parametrize("penalty", ["google", "huggingface"])
@pytest.mark.parametrize("early_stopping", ["never", True, False])
def test_it_finds_what_the_library_finds(searched, penalty: str, early_stopping):
    model = sharp(5)
    theirs = LibrarySearch(model.config).eval()
    theirs.load_state_dict(model.state_dict())
    exponent = Google(0.6) if penalty == "google" else 0.6
    for seed in range(6):
        asked = {
            **sentences(seed, [2 + seed], "right"),
            "num_beams": 4,
            "num_return_sequences": 4,
            "early_stopping": early_stopping,
            "max_new_tokens": 12,
            "return_dict_in_generate": True,
        }
        ours = model.generate(**asked, length_penalty_type=penalty, length_penalty=0.6)
        assert_same(ours, theirs.generate(**asked, length_penalty=exponent, output_scores=True))
    assert len(searched) == 6


def test_a_cache_of_a_greedy_search_can_be_gone_on_from():
    model, source = sharp(5), sentences(2, [6], "right")
    start = model.generate(**source, num_beams=1, max_new_tokens=3, return_dict_in_generate=True)
    outputs = model(
        attention_mask=source["attention_mask"],
        encoder_outputs=model.get_encoder()(**source),
        decoder_input_ids=start.sequences[:, -1:],
        past_key_values=start.past_key_values,
    )
    whole = model(**source, decoder_input_ids=start.sequences)
    torch.testing.assert_close(outputs.logits[:, -1], whole.logits[:, -1], atol=1e-4, rtol=1e-4)


ELSEWHERE = {
    "two sentences": sentences(0, [4, 3], "right"),
    "padding": {key: value[1:] for key, value in sentences(0, [4, 3], "right").items()},
    "a processor": {"min_new_tokens": 3},
    "sampling": {"do_sample": True, "num_beams": 1},
    "8 bits": {"quantization": "int8"},
    "a prompt": {"decoder_input_ids": torch.tensor([[1, 9]])},
}


@pytest.mark.parametrize("call", ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_it_does_not_do_is_done_elsewhere(searched, call: dict):
    model = sharp(4)
    for _ in range(2):
        model.generate(**{**sentences(1, [4], "right"), **call})
    assert not searched


@pytest.mark.parametrize(("beams", "expected"), [(1, ["greedy_search"]), (2, [])])
def test_a_beam_of_a_larger_decoder_is_computed_step_by_step(monkeypatch, searched, beams: int, expected: list[str]):
    monkeypatch.setattr(planned_search, "LARGEST_BEAM_DECODER", 1000)
    sharp(4).generate(**sentences(1, [4], "right"), num_beams=beams)
    assert searched == expected


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
@torch.no_grad()
def test_a_beam_is_multiplied_by_copies_of_fixed_weights(monkeypatch, searched, architecture: dict):
    monkeypatch.setattr(planned_search, "LARGEST_BEAM_DECODER", 0)
    model = sharp(3, **architecture)
    asked = {**sentences(0, [5], "right"), "num_return_sequences": 4, "return_dict_in_generate": True}
    with model.fixed_weights():
        before = model.generate(**asked)
        assert searched == ["beam_search"]
        model.model.decoder.layers[0].feed_forward.w_1.weight.neg_()
        found = model.generate(**asked)
    with computed_by("torch"):
        assert_same(found, model.generate(**asked))
    assert not torch.equal(before.sequences_scores, found.sequences_scores)
    model.model.encoder.layers[0].feed_forward.w_1.weight.data.neg_()
    with model.fixed_weights():
        found = model.generate(**asked)
    with computed_by("torch"):
        assert_same(found, model.generate(**asked))
    assert searched == ["beam_search"] * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_computed_elsewhere(searched, dtype):
    model = sharp(4).to(dtype)
    for _ in range(2):
        model.generate(**sentences(1, [4], "right"))
    assert not searched


def test_a_token_that_is_not_in_the_vocabulary_is_refused():
    model = sharp(9)
    model.generate(**sentences(0, [2], "right"))
    for wrong in (-1, 150):
        with pytest.raises(IndexError, match="out of range"):
            model.generate(input_ids=torch.tensor([[wrong, END]]), attention_mask=torch.ones(1, 2, dtype=torch.long))


def negated(weight):
    weight.data.neg_()


def one_row(weight):
    weight.data[len(weight) // 2] *= -3.0


def through_numpy(weight):
    weight.detach().numpy()[::2] *= -2.0


def another_tensor(weight):
    weight.data = weight.data.flip(0).clone()


def transposed_in_place(weight):
    weight.data = weight.data.mT


def optimizer(weight):
    with torch.no_grad():
        weight.sub_(0.7 * weight.sign())


@pytest.mark.parametrize("edit", [negated, one_row, through_numpy, another_tensor, transposed_in_place, optimizer])
@pytest.mark.parametrize("beams", [1, 3])
def test_every_change_of_a_weight_is_seen(edit, beams: int):
    model, changed = sharp(13), 0
    asked = {**sentences(4, [7], "right"), "num_beams": beams, "max_new_tokens": 8}
    model.generate(**asked)
    before = model.generate(**asked)
    for name, weight in model.named_parameters():
        if edit is transposed_in_place and (weight.dim() != 2 or weight.shape[0] != weight.shape[1]):
            continue
        edit(weight)
        found, expected = model.generate(**asked), copy.deepcopy(model).generate(**asked)
        assert torch.equal(found, expected), name
        changed += found.shape != before.shape or not torch.equal(found, before)
        before = found
    assert changed, "the changes must change what is found"


def test_a_part_of_a_weight_is_not_read_as_the_whole():
    model, asked = sharp(13), {**sentences(4, [7], "right"), "num_beams": 1, "max_new_tokens": 8}
    model.generate(**asked)
    model.generate(**asked)
    weight = model.model.decoder.layers[0].feed_forward.w_1.weight
    weight.data = weight.data[:-1]
    with pytest.raises(Exception, match="mismatch|shapes cannot"):
        model.generate(**asked)


def test_memory_that_others_write_is_seen():
    model, asked = sharp(13), {**sentences(4, [7], "right"), "num_beams": 1}
    memory = np.random.default_rng(0).normal(size=(150, 16)).astype(np.float32)
    model.lm_head.weight.data = torch.from_numpy(memory)
    model.generate(**asked)
    before = model.generate(**asked)
    memory[:] = memory[::-1].copy()
    found = model.generate(**asked)
    assert torch.equal(found, copy.deepcopy(model).generate(**asked))
    assert found.shape != before.shape or not torch.equal(found, before)


def test_a_model_is_not_kept_alive_by_its_session():
    import gc
    import weakref

    model = sharp(13)
    for beams in (1, 4):
        model.generate(**sentences(4, [7], "right"), num_beams=beams)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_threads_share_the_session_of_a_model(searched):
    model, results = sharp(10), {}
    sources = [sentences(seed, [3 + seed % 4], "right") for seed in range(8)]
    with computed_by("torch"):
        expected = [sharp(10).generate(**source, return_dict_in_generate=True) for source in sources]

    def call(first: int) -> None:
        for number in [*range(first, 8), *range(first)]:
            found = model.generate(**sources[number], return_dict_in_generate=True)
            results.setdefault(number, []).append(found)

    threads = [threading.Thread(target=call, args=(2 * first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(searched) == 32
    for number, wanted in enumerate(expected):
        for found in results[number]:
            assert_same(found, wanted)
