"""Special tokens that a user adds to a tokenizer, beside the four of the class, which no text can spell."""

import pytest
from transformers import AutoTokenizer

from vanilla_transformer import VanillaTransformerTokenizer


@pytest.fixture(params=["bpe", "wordpiece", "unigram", "character"])
def tokenizer(request) -> VanillaTransformerTokenizer:
    texts = ["the little house is small", "das kleine Haus ist klein"]
    return VanillaTransformerTokenizer.train(
        texts, vocab_size=285 if request.param != "character" else 260, algorithm=request.param
    )


def test_added_special_token_is_one_token_in_text_and_is_skipped_with_the_others(tokenizer, tmp_path):
    tokenizer.add_special_tokens({"extra_special_tokens": [">>deu<<"]})
    tokenizer.add_tokens(["<sep>"], special_tokens=True)
    tokenizer.save_pretrained(tmp_path)
    for either in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        ids = either(">>deu<<the house</s><sep>")["input_ids"]
        assert ids[0] == either.convert_tokens_to_ids(">>deu<<") == len(either) - 2
        assert ids[-2:] == [either.convert_tokens_to_ids("<sep>"), 2]
        assert ids.count(2) == 1  # `</s>` in the text is text.
        assert either.decode(ids, skip_special_tokens=True).strip() == "the house</s>"
        assert ">>deu<<" in either.decode(ids)
        assert {">>deu<<", "<sep>"} <= set(either.all_special_tokens)


def test_text_without_added_tokens_still_comes_back_exactly(tokenizer):
    tokenizer.add_special_tokens({"extra_special_tokens": [">>deu<<"]})
    for text in ("a <pad> b</s> c", "  two  spaces ", "\U0001f600 é\n"):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert tokenizer.batch_decode([ids, [2]], skip_special_tokens=True) == [text, ""]
