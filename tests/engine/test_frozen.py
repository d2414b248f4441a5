"""`with model.frozen()`: weights are copied at its beginning, used in its own context, and forgotten at the end."""

import contextvars
import copy
import gc
import multiprocessing
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from refusals import refused
from searches import INPUTS, sharp

from vanilla_transformer.engine import opened
from vanilla_transformer.translation.ensemble import EnsembleForConditionalGeneration

ASKED = {**INPUTS, "max_new_tokens": 8}


@pytest.mark.parametrize("decoded_before", [True, False])
@pytest.mark.parametrize("fields", [{}, {"attention_bias": True, "output_bias": True, "activation_function": "gelu"}])
@pytest.mark.parametrize("held", [None, "int8"])
def test_a_block_computes_with_the_weights_at_its_beginning(held, fields, decoded_before):
    calls = [{"num_beams": 1}, {"num_beams": 4}, {"quantization": "int8"}, {"no_repeat_ngram_size": 2}]

    def decoded(model):
        found = [model.generate(**ASKED, **call) for call in calls]
        with torch.autocast("cpu", torch.bfloat16):
            return [*found, model.generate(**ASKED)]

    positions = {"positional_encoding": "learned", "max_position_embeddings": 40} if fields else {}
    model = sharp(0, d_model=64, **fields, **positions)
    with model.frozen(held):
        expected = decoded(model)
    # In training mode it is the model's own forward, with dropout; what it holds is there when that is over.
    model.train()
    with model.frozen(held):
        model.eval()
        if decoded_before:
            decoded(model)
        model.train()
        model(**INPUTS, labels=INPUTS["input_ids"]).loss.backward()
        torch.optim.SGD(model.parameters(), 1.0).step()
        model.eval()
        assert all(map(torch.equal, decoded(model), expected))
        model.load_state_dict(sharp(1, d_model=64, **fields, **positions).state_dict())
        assert all(map(torch.equal, decoded(model), expected))
    assert opened(model) is None
    assert not all(map(torch.equal, decoded(model), expected))


def test_what_a_block_holds_ends_when_it_is_left_and_not_before():
    model, other = sharp(0, d_model=64), sharp(1, d_model=64)
    expected, after = model.generate(**ASKED), other.generate(**ASKED)
    block = model.frozen()
    held = block.__enter__()
    reference = weakref.ref(held)
    del held, block
    gc.collect()
    model.load_state_dict(other.state_dict())
    assert torch.equal(model.generate(**ASKED), expected)
    # Left in any order.
    with model.frozen("int8") as inner:
        opened_by_hand = reference()
        assert opened_by_hand is not None and inner.model is opened_by_hand.model
        opened_by_hand.__exit__(None, None, None)
        assert opened(model) is inner
    assert opened(model) is None and torch.equal(model.generate(**ASKED), after)
    del opened_by_hand, inner
    gc.collect()
    assert reference() is None
    assert opened(copy.deepcopy(model)) is None


def test_blocks_nest_with_the_weights_and_bits_of_the_outer_one_and_end_with_an_error():
    model = sharp(0, d_model=64)
    expected = [model.generate(**ASKED), model.generate(**ASKED, quantization="int8")]
    with pytest.raises(RuntimeError), model.frozen() as outer:
        model.load_state_dict(sharp(1, d_model=64).state_dict())
        with model.frozen():
            assert torch.equal(model.generate(**ASKED), expected[0])
        with model.frozen("int8") as inner:
            assert opened(model) is inner
            with model.frozen():
                assert torch.equal(model.generate(**ASKED), expected[1])
        assert opened(model) is outer
        raise RuntimeError
    assert opened(model) is None


def test_other_threads_see_nothing_of_a_block_unless_it_is_handed_on():
    model, other = sharp(0, d_model=64), sharp(1, d_model=64)
    expected, changed = model.generate(**ASKED), other.generate(**ASKED)
    scores = {**ASKED, "output_scores": True, "return_dict_in_generate": True}
    with model.frozen():
        model.load_state_dict(other.state_dict())
        handed = [contextvars.copy_context() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            assert torch.equal(pool.submit(model.generate, **ASKED).result(), changed)
            found = pool.map(lambda context: context.run(model.generate, **ASKED), handed)
            assert all(torch.equal(one, expected) for one in found)
    # Neither 8 bits nor its refusals reach another thread, and a block that was left is over in every thread.
    with model.frozen("int8"), ThreadPoolExecutor(1) as pool:
        assert "scores" in pool.submit(model.generate, **scores).result()
    assert torch.equal(handed[0].run(model.generate, **ASKED), changed)


@pytest.mark.parametrize("inference", [True, False])
def test_a_model_may_have_attributes_that_cannot_be_copied(inference):
    model = sharp(0)
    expected = model.generate(**ASKED)
    model.lock, model.model.encoder.seen = threading.Lock(), torch.ones(1, requires_grad=True) * 2
    with torch.inference_mode(inference), model.frozen():
        assert torch.equal(model.generate(**ASKED), expected)


def test_a_call_that_the_library_searches_has_one_kind_of_weights(ways_taken):
    model, other = sharp(0), sharp(1)
    scores = {**ASKED, "output_scores": True, "return_dict_in_generate": True}
    with model.frozen():
        model.load_state_dict(other.state_dict())
        found = model.generate(**scores)
    assert ways_taken == ["library"]
    torch.testing.assert_close(found.sequences_scores, other.generate(**scores).sequences_scores, rtol=0, atol=0)


def test_a_model_unknown_or_in_training_uses_the_librarys_search_and_has_no_8_bits(ways_taken):
    model = sharp(0)
    with model.frozen():
        model.train()
        model.generate(**ASKED)
    model.eval().model.decoder.layers[0].register_forward_hook(lambda *_: None)
    with model.frozen():
        model.generate(**ASKED)
    assert ways_taken == ["library", "library"]
    with refused(ValueError, "int8", "model.decoder.layers.0"), model.frozen("int8"):
        pass
    known = sharp(0)
    with refused(ValueError, "int8"), EnsembleForConditionalGeneration([known, model]).frozen("int8"):
        pass
    assert opened(known) is None


def test_a_found_translation_can_be_changed():
    model = sharp(0)
    with model.frozen():
        for num_beams in (1, 4):
            model.generate(**ASKED, num_beams=num_beams)[0, 0] = 7


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_fork_while_a_block_is_packed_can_decode():
    packing, forked = threading.Event(), threading.Event()

    def slow(model, weights):
        packing.set()
        forked.wait(20)

    with sharp(0).frozen() as held:
        thread = threading.Thread(target=held.part, args=(slow, torch.float32, None))
        thread.start()
        packing.wait(20)
        work = lambda model, weights: None, torch.float32, None  # noqa: E731
        child = multiprocessing.get_context("fork").Process(target=held.part, args=work)
        child.start()
        child.join(10)
        child.kill()  # Where it hangs.
        child.join()
        forked.set()
        thread.join()
    assert child.exitcode == 0
