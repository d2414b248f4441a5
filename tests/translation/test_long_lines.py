"""The beginning of a long line has exactly the tokens that the whole line begins with."""

import random

import pytest
from small_models import unigram_tokenizer

from vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.translation.long_lines import _SHORT, beginning

TEXTS = [
    "the don't theft then's other-worldly thee, 3 thousand!",
    "ababab abab baba a'b'a don't",
    "  two   spaces\t.. ",
]
TOKENS = 24


def long_text(kind, draw):
    """Texts that go on for ever in one way."""
    return {
        "words": lambda: " ".join(draw.choices(["the", "don't", "a'b'a", "theft", "3", "...", "then's"], k=2000)),
        "one word": lambda: "".join(draw.choices("abthe", k=5000)),
        "one word with apostrophes": lambda: "".join(draw.choices("ab'", k=5000)),
        "one letter": lambda: "a" * 5000,
        "signs": lambda: "".join(draw.choices("-.!", k=5000)),
        "spaces": lambda: "".join(draw.choices([" ", "  ", "\t", "a", "the"], k=4000)),
        "spaces alone": lambda: " " * 5000 + "the",
        "other letters": lambda: "".join(draw.choices("中文äé\u0301\u200d漢", k=3000)),
        "a long word after others": lambda: "the don't " + "".join(draw.choices("abthe", k=5000)) + " end",
        "digits": lambda: "".join(draw.choices("0123456789", k=3000)),
    }[kind]()


KINDS = [
    *("words", "one word", "one word with apostrophes", "one letter", "signs", "spaces", "spaces alone"),
    *("other letters", "a long word after others", "digits"),
]


@pytest.fixture(scope="module", params=["bpe", "wordpiece", "unigram", "character", "presplit"])
def tokenizer(request):
    if request.param == "unigram":
        return unigram_tokenizer(TEXTS * 3, 300)
    size = {"presplit": None, "character": 260}.get(request.param, 300)
    return VanillaTransformerTokenizer.train(TEXTS * 3, vocab_size=size, algorithm=request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_the_beginning_has_the_tokens_that_the_whole_begins_with(tokenizer, kind):
    draw = random.Random(kind)
    for _ in range(5):
        text = long_text(kind, draw)
        part = beginning(tokenizer, text, TOKENS)
        ids, all_ids = tokenizer([part, text])["input_ids"]
        # More than asked for, so that the line is still known to be too long.
        if part != text:
            assert len(ids) > TOKENS
        assert ids[:TOKENS] == all_ids[:TOKENS]
        if kind != "spaces alone":
            assert len(part) < len(text)


def test_lines_that_are_not_long_and_other_tokenizers_are_left_alone(tokenizer):
    short = "a" * (_SHORT * TOKENS)
    assert beginning(tokenizer, short, TOKENS) == short
    assert beginning(object(), 2 * short, TOKENS) == 2 * short
