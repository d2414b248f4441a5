"""Single calls from several threads, gathered into batches: the answers of single calls, and errors for one alone."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from refusals import refused

from vanilla_transformer import (
    Batcher,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
    translate_lines,
)

LINES = ["a b c", "", "the longest line of them all", "  ", "d", "e f", "e f", "them all"]


class Counting(VanillaTransformerForConditionalGeneration):
    """Remembers how many rows each call has, and fails for sources of some length."""

    fails_at: int | None = None

    def generate(self, input_ids, **kwargs):
        self.rows.append(len(input_ids))
        if self.fails_at in kwargs["attention_mask"].sum(1).tolist():
            raise OverflowError("too much of it")
        return super().generate(input_ids, **kwargs)


@pytest.fixture(scope="module")
def tokenizer() -> VanillaTransformerTokenizer:
    return VanillaTransformerTokenizer.train(LINES, vocab_size=280)


@pytest.fixture
def model(tokenizer) -> Counting:
    torch.manual_seed(0)
    model = Counting(
        VanillaTransformerConfig(
            vocab_size=len(tokenizer), d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1
        )
    ).eval()
    model.rows = []
    return model


def test_answers_are_those_of_single_calls(model, tokenizer):
    settings = {"num_beams": 3, "num_return_sequences": 2, "scores": True, "max_length_beyond_source": 3}
    expected = list(translate_lines(model, tokenizer, LINES, batch_tokens=1, **settings))
    with Batcher(model, tokenizer, **settings) as batcher, ThreadPoolExecutor(4) as callers:
        for actual, single in zip(callers.map(batcher, LINES * 5), expected * 5, strict=True):
            assert [(one.text, one.tokens) for one in actual.hypotheses] == [
                (one.text, one.tokens) for one in single.hypotheses
            ]
            assert [one.score for one in actual.hypotheses] == pytest.approx(
                [one.score for one in single.hypotheses], abs=1e-5
            )


def test_calls_of_several_threads_become_one_batch(model, tokenizer):
    with (
        Batcher(model, tokenizer, max_lines=4, patience=300, max_new_tokens=3) as batcher,
        ThreadPoolExecutor(8) as pool,
    ):
        begun = time.monotonic()
        list(pool.map(batcher, ["a b c", "d", "e f", "them all"] * 2))
    assert model.rows == [4, 4] and time.monotonic() - begun < 250  # Whoever makes a batch whole ends the waiting.


def test_lines_that_keep_coming_do_not_keep_one_waiting(model, tokenizer):
    with Batcher(model, tokenizer, max_lines=10**6, patience=0.02, max_new_tokens=1) as batcher:
        done = threading.Event()

        def keep_calling() -> None:
            while not done.is_set():
                batcher._waiting.put(("d", Future()))
                time.sleep(0.005)

        caller = threading.Thread(target=keep_calling)
        caller.start()
        assert batcher("a b c").text == next(translate_lines(model, tokenizer, ["a b c"], max_new_tokens=1)).text
        done.set()
        caller.join()


def test_a_call_alone_waits_no_longer_than_it_has_to(model, tokenizer):
    with Batcher(model, tokenizer, patience=0.001, max_new_tokens=3) as batcher:
        assert [batcher(line).text for line in LINES[:3]] == [
            line.text for line in translate_lines(model, tokenizer, LINES[:3], max_new_tokens=3)
        ]


def test_an_error_reaches_its_caller_alone(model, tokenizer):
    lines = ["a b c", "d", "e f", "the longest line of them all"]
    expected = [line.text for line in translate_lines(model, tokenizer, lines, max_new_tokens=3)]
    model.fails_at = len(tokenizer("d")["input_ids"])
    assert sum(len(tokenizer(line)["input_ids"]) == model.fails_at for line in lines) == 1
    with (
        Batcher(model, tokenizer, max_lines=4, patience=30, max_new_tokens=3) as batcher,
        ThreadPoolExecutor(4) as pool,
    ):
        answers = [pool.submit(batcher, line) for line in lines]
        with refused(OverflowError, "too much of it"):
            answers[1].result()
        assert [answers[number].result().text for number in (0, 2, 3)] == [expected[number] for number in (0, 2, 3)]


def test_closing_waits_for_what_was_asked_and_takes_no_more(model, tokenizer):
    batcher = Batcher(model, tokenizer, patience=0.2, max_new_tokens=3)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(batcher, "a b c"), pool.submit(batcher, "d")]
        while sum(model.rows) == 0 and batcher._waiting.empty():
            time.sleep(0.001)
        batcher.close()
        assert all(answer.exception() is None or "is closed" in str(answer.exception()) for answer in answers)
        assert any(answer.exception() is None for answer in answers)
    with refused(RuntimeError, "closed"):
        batcher("d")
    batcher.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("Batcher")]


def test_bad_input_is_refused_in_the_call_itself(model, tokenizer):
    with Batcher(model, tokenizer) as batcher, refused(TypeError, "str", "list"):
        batcher(["a", "b"])
    with refused(ValueError, "max_lines", "0"):
        Batcher(model, tokenizer, max_lines=0)
    assert model.rows == []
