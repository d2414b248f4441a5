"""The beginning of a long line has exactly the tokens that the whole line begins with."""

import random

import pytest
from small_models import unigram_tokenizer

from vanilla_transformer.tokenizer import train_tokenizer
from vanilla_transformer.translation.live_models import LibraryTokenizer
from vanilla_transformer.translation.tokenizer_file import beginning

TEXTS = [
    "the don't theft then's other-worldly thee, 3 thousand!",
    "ababab abab baba a'b'a don't",
    "  two   spaces\t.. ",
]
TOKENS = 24
LETTERS = {
    "words": (["the ", "don't ", "a'b'a ", "theft ", "3 ", "... ", "then's "], 2000),
    "one word": ("abthe", 5000),
    "one word with apostrophes": ("ab'", 5000),
    "one letter": ("a", 5000),
    "signs": ("-.!", 5000),
    "spaces": ([" ", "  ", "\t", "a", "the"], 4000),
    "other letters": ("中文äé\u0301\u200d漢", 3000),
    "digits": ("0123456789", 3000),
}


@pytest.fixture(scope="module", params=["bpe", "wordpiece", "unigram", "character", "presplit"])
def tokenizer(request):
    if request.param == "unigram":
        return unigram_tokenizer(TEXTS * 3, 300)
    size = {"presplit": None, "character": 260}.get(request.param, 300)
    return train_tokenizer(TEXTS * 3, vocab_size=size, algorithm=request.param)


@pytest.mark.parametrize("kind", LETTERS)
def test_the_beginning_has_the_tokens_that_the_whole_begins_with(tokenizer, kind):
    draw = random.Random(kind)
    for start in ("", "", "the don't "):
        letters, count = LETTERS[kind]
        text = start + "".join(draw.choices(letters, k=count))
        part = beginning(LibraryTokenizer(tokenizer).encode, text, TOKENS)
        ids, all_ids = tokenizer([part, text])["input_ids"]
        # More than asked for, so that the line is still known to be too long.
        assert len(part) < len(text) and len(ids) > TOKENS
        assert ids[:TOKENS] == all_ids[:TOKENS]
