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
from vanilla_transformer.engine.frozen import _OPEN

ASKED = {**INPUTS, "max_new_tokens": 8}


@pytest.fixture(params=["a graph", "packed weights"])
def kind(request, missing) -> None:
    """Small models are frozen as one graph where ONNX Runtime is installed."""
    if request.param == "packed weights":
        missing("onnxruntime")


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_changes_inside_are_not_seen_and_changes_after_are(kind, quantization):
    model, other = sharp(0, d_model=64), sharp(1, d_model=64)
    with model.frozen(quantization):
        before = [model.generate(**ASKED, num_beams=beams) for beams in (1, 4)]
        for name, weight in model.state_dict().items():
            if name.endswith("proj.weight"):
                weight.neg_()
        for beams, expected in zip((1, 4), before, strict=True):
            assert torch.equal(model.generate(**ASKED, num_beams=beams), expected)
    assert opened(model) is None
    model.load_state_dict(other.state_dict())
    asked = {**ASKED, "quantization": quantization}
    for _ in range(2):
        assert torch.equal(model.generate(**asked), other.generate(**asked))
        for changed in (model, other):
            changed.load_state_dict(sharp(2, d_model=64).state_dict())
    # Other models may be open: a demo's server holds its own for as long as it runs.
    assert model not in _OPEN


def test_frozen_models_nest_and_thaw_after_an_error():
    model = sharp(0, d_model=64)
    expected = model.generate(**ASKED, quantization="int8")
    with pytest.raises(RuntimeError), model.frozen() as outer:
        with model.frozen("int8") as inner:
            assert opened(model) is inner
            assert torch.equal(model.generate(**ASKED), expected)
        assert opened(model) is outer
        raise RuntimeError
    assert opened(model) is None


def test_threads_share_a_frozen_model(kind):
    model = sharp(0)
    expected = model.generate(**ASKED)
    found = []
    with model.frozen():
        assert torch.equal(model.generate(**ASKED), expected)
        model.load_state_dict(sharp(1).state_dict())
        threads = [threading.Thread(target=lambda: found.append(model.generate(**ASKED))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 4 and all(torch.equal(one, expected) for one in found)


def test_a_copy_of_a_model_is_not_frozen_and_a_dropped_one_is_freed():
    model = sharp(0)
    with model.frozen():
        model.generate(**ASKED)
        assert opened(copy.deepcopy(model)) is None
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_a_frozen_unknown_model_uses_the_librarys_search(ways_taken):
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
def test_changing_a_found_translation_changes_no_later_one(asked):
    model = sharp(0, activation_function="gelu_fast")  # Not one graph.
    with model.frozen():
        found = model.generate(**ASKED, **asked)
    (found if isinstance(found, torch.Tensor) else found.sequences)[0, 0] = 7
