"""`with model.frozen()`: weights are copied once, used from any thread, and forgotten at the end."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from refusals import refused
from searches import INPUTS, sentences, sharp

from vanilla_transformer import VanillaTransformerForConditionalGeneration, engine
from vanilla_transformer.engine import opened
from vanilla_transformer.engine.frozen import _OPEN, Frozen
from vanilla_transformer.engine.linear import PackedWeights

ASKED = {**INPUTS, "max_new_tokens": 8}


@pytest.fixture
def packings(monkeypatch) -> list[int]:
    """Counts the linear layers that are packed."""
    # Small models would be one graph.
    monkeypatch.setattr(Frozen, "search", lambda *_: None)
    packed: list[int] = []
    make = PackedWeights._linear
    monkeypatch.setattr(PackedWeights, "_linear", lambda *args: packed.append(1) or make(*args))
    return packed


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_weights_are_packed_once(packings, quantization):
    model = sharp(0, d_model=64)
    with model.frozen(quantization):
        expected = model.generate(**ASKED)
        once = len(packings)
        for beams in (1, 4, 3):
            model.generate(**ASKED, num_beams=beams)
        assert torch.equal(model.generate(**ASKED), expected)
        assert len(packings) == once
    assert opened(model) is None


def test_nothing_outlives_a_call_outside(packings):
    model = sharp(0)
    model.generate(**ASKED)
    assert not packings
    for _ in range(2):
        packings.clear()
        model.generate(**ASKED, quantization="int8")
        assert packings
    # Other models may be open: a demo's server holds its own for as long as it runs.
    assert model not in _OPEN


def test_changes_inside_are_not_seen_and_changes_after_are():
    model = sharp(0)
    before = model.generate(**ASKED)
    with model.frozen():
        assert torch.equal(model.generate(**ASKED), before)
        model.load_state_dict(sharp(1).state_dict())
        assert torch.equal(model.generate(**ASKED), before)
    assert torch.equal(model.generate(**ASKED), sharp(1).generate(**ASKED))


def test_it_may_be_nested_and_ends_with_an_error():
    model = sharp(0, d_model=64)
    expected = model.generate(**ASKED, quantization="int8")
    with pytest.raises(RuntimeError), model.frozen() as outer:
        with model.frozen("int8") as inner:
            assert opened(model) is inner
            assert torch.equal(model.generate(**ASKED), expected)
        assert opened(model) is outer
        raise RuntimeError
    assert opened(model) is None


def test_threads_share_it(packings):
    model = sharp(0)
    expected = model.generate(**ASKED)
    found = []
    with model.frozen():
        threads = [threading.Thread(target=lambda: found.append(model.generate(**ASKED))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        once = len(packings)
        model.generate(**ASKED)
        assert len(packings) == once
    assert all(torch.equal(one, expected) for one in found)


def test_a_copy_of_a_model_is_not_frozen_and_a_dropped_one_is_freed():
    model = sharp(0)
    with model.frozen():
        model.generate(**ASKED)
        assert opened(copy.deepcopy(model)) is None
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_what_the_engine_does_not_know_is_searched_as_outside(ways_taken):
    model = sharp(0)
    model.model.decoder.layers[0].register_forward_hook(lambda *_: None)
    with model.frozen():
        model.generate(**ASKED)
    assert ways_taken == ["library"]
    with refused(ValueError, "int8", "model.decoder.layers.0"), model.frozen("int8"):
        pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("beams", [1, 4])
def test_packed_weights_find_nearly_the_same(dtype, beams):
    model = sharp(4, d_model=64, attention_bias=True).to(dtype)
    inputs = sentences(3, [6, 9, 4, 5], "right")
    asked = {**inputs, "max_new_tokens": 6, "return_dict_in_generate": True, "num_beams": beams}
    outside = model.generate(**asked)
    with model.frozen():
        inside = model.generate(**asked)
    if dtype == torch.float32:
        assert torch.equal(inside.sequences, outside.sequences)
    if beams > 1:
        torch.testing.assert_close(inside.sequences_scores, outside.sequences_scores, atol=2e-2, rtol=1e-2)


def test_a_plain_call_of_a_saved_model_needs_no_preparation_by_the_library(tmp_path, monkeypatch):
    sharp(0).save_pretrained(tmp_path)
    model = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    calls = [{}, {"num_beams": 1}, {"num_beams": 3, "num_return_sequences": 2, "return_dict_in_generate": True}]
    expected = [model.generate(**INPUTS, **call) for call in calls]
    monkeypatch.setattr(engine, "decode", None)
    with model.frozen():
        for call, outside in zip(calls, expected, strict=True):
            inside = model.generate(**INPUTS, **call)
            pairs = (
                [(inside, outside)] if isinstance(inside, torch.Tensor) else [(inside.sequences, outside.sequences)]
            )
            assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize(
    "asked", [{"num_beams": 1}, {"num_beams": 4}, {"num_beams": 1, "return_dict_in_generate": True}]
)
def test_what_is_found_inside_may_be_changed(asked):
    model = sharp(0, activation_function="gelu_fast")  # Not one graph.
    with model.frozen():
        found = model.generate(**ASKED, **asked)
    (found if isinstance(found, torch.Tensor) else found.sequences)[0, 0] = 7
