"""`with model.frozen()`: weights are copied at its beginning, used from any thread, and forgotten at the end."""

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


@pytest.mark.parametrize("decoded_before", [True, False])
@pytest.mark.parametrize("fields", [{}, {"attention_bias": True, "output_bias": True, "activation_function": "gelu"}])
@pytest.mark.parametrize("held", [None, "int8"])
def test_a_block_computes_with_the_weights_at_its_beginning(kind, held, fields, decoded_before):
    calls = [{"num_beams": 1}, {"num_beams": 4}, {"quantization": "int8"}]

    def decoded(model):
        found = [model.generate(**ASKED, **call) for call in calls]
        with torch.autocast("cpu", torch.bfloat16):
            return [*found, model.generate(**ASKED)]

    positions = {"positional_encoding": "learned", "max_position_embeddings": 40} if fields else {}
    model = sharp(0, d_model=64, **fields, **positions)
    with model.frozen(held):
        expected = decoded(model)
    with model.frozen(held):
        if decoded_before:
            decoded(model)
        model.train()
        model(**INPUTS, labels=INPUTS["input_ids"]).loss.backward()
        torch.optim.SGD(model.parameters(), 1.0).step()
        model.eval()
        assert all(map(torch.equal, decoded(model), expected))
        model.load_state_dict(sharp(1, d_model=64, **fields, **positions).state_dict())
        assert all(map(torch.equal, decoded(model), expected))
    assert not all(map(torch.equal, decoded(model), expected))


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_changes_after_a_block_are_seen(kind, quantization):
    model, other = sharp(0, d_model=64), sharp(1, d_model=64)
    with model.frozen(quantization):
        model.generate(**ASKED)
    assert opened(model) is None
    model.load_state_dict(other.state_dict())
    asked = {**ASKED, "quantization": quantization}
    for _ in range(2):
        assert torch.equal(model.generate(**asked), other.generate(**asked))
        for changed in (model, other):
            changed.load_state_dict(sharp(2, d_model=64).state_dict())
    # Other models may be open: a demo's server holds its own for as long as it runs.
    assert model not in _OPEN


@pytest.mark.parametrize("inference", [True, False])
def test_a_model_may_have_attributes_that_cannot_be_copied(kind, inference):
    model = sharp(0)
    expected = model.generate(**ASKED)
    model.lock, model.model.encoder.seen = threading.Lock(), torch.ones(1, requires_grad=True) * 2
    with torch.inference_mode(inference), model.frozen():
        assert torch.equal(model.generate(**ASKED), expected)


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


@pytest.mark.parametrize("held", [None, "int8"])
def test_a_nested_block_continues_with_the_weights_and_bits_of_the_outer_one(held):
    model = sharp(0, d_model=64)
    with model.frozen(held) as outer:
        expected = [model.generate(**ASKED, quantization=quantization) for quantization in (None, "int8")]
        model.load_state_dict(sharp(1, d_model=64).state_dict())
        with model.frozen() as inner:
            assert inner is outer
            assert torch.equal(model.generate(**ASKED), expected[0])
        assert opened(model) is outer
        with model.frozen("int8"):
            assert torch.equal(model.generate(**ASKED), expected[1])


def test_a_block_beside_a_call_without_a_copy_has_weights_of_its_own():
    model = sharp(0)
    expected = model.generate(**ASKED)
    with engine.frozen(model, copy=False) as of_a_call, model.frozen() as held:
        assert held is not of_a_call
        model.load_state_dict(sharp(1).state_dict())
        assert torch.equal(model.generate(**ASKED), expected)


@pytest.mark.parametrize("asked", [{}, {"no_repeat_ngram_size": 2}])
def test_all_calls_in_a_block_of_8_bits_have_encoder_and_decoder_of_8_bits(asked):
    model, asked = sharp(0, d_model=64), {**ASKED, **asked, "return_dict_in_generate": True}
    with model.frozen():
        expected = model.generate(**asked, quantization="int8")
    with model.frozen("int8"):
        assert torch.equal(model.generate(**asked).sequences_scores, expected.sequences_scores)


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
