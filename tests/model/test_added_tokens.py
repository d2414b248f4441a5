"""Special tokens in a string, of the class and a user's, in each of the three ways to load a tokenizer."""

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.plain_text import plain_text
from vanilla_transformer.tokenizer import ALGORITHMS

TEXTS = ["the little house is small", "das kleine Haus ist klein"]
WAYS = ["with the package", "without it", "tokenizers"]


def trained(algorithm: str = "bpe", **settings) -> VanillaTransformerTokenizer:
    size = {"character": 261, "presplit": None}.get(algorithm, 285)
    return VanillaTransformerTokenizer.train(TEXTS, size, algorithm, **settings)


def loaded(directory, way):
    """A function each from text to ids, and back without and with special tokens; and the tokenizer."""
    if way == "tokenizers":
        alone = Tokenizer.from_file(str(directory / "tokenizer.json"))
        return (
            lambda text: alone.encode(text, add_special_tokens=False).ids,
            lambda ids: alone.decode(ids, skip_special_tokens=False),
            lambda ids: alone.decode(ids, skip_special_tokens=True),
            alone,
        )
    one = (AutoTokenizer if way == "with the package" else PreTrainedTokenizerFast).from_pretrained(directory)
    assert isinstance(one, VanillaTransformerTokenizer) == (way == "with the package")
    return (
        lambda text: one(text, add_special_tokens=False)["input_ids"],
        one.decode,
        lambda ids: one.decode(ids, skip_special_tokens=True),
        one,
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_special_tokens_are_found_skipped_and_written_alike(algorithm, way, tmp_path):
    tokenizer = trained(algorithm, mask_token=True)
    tokenizer.add_special_tokens({"extra_special_tokens": [">>deu<<"]})
    tokenizer.add_tokens(["<sep>"], special_tokens=True)
    tokenizer.add_tokens(["zzz"])
    tokenizer.save_pretrained(tmp_path)
    encode, write, skip, _ = loaded(tmp_path, way)
    for text, plain in (
        (">>deu<<the house</s>", "the house"),
        ("the</s> house <sep> is", "the house  is"),
        ("das zzz  zzzHaus", "das zzz  zzzHaus"),
        (" zzz>>deu<< ist<pad>", " zzz ist"),
        ("the(<mask>)", "the()"),
    ):
        ids = encode(text)
        assert write(ids) == text and skip(ids) == plain
        named = [str(token) for token in tokenizer.all_special_tokens] + ["<sep>", "zzz"]
        assert all(ids.count(tokenizer.convert_tokens_to_ids(name)) == text.count(name) for name in named)


@pytest.mark.parametrize("way", WAYS)
def test_tokens_that_are_added_after_loading_are_too(way, tmp_path):
    trained().save_pretrained(tmp_path)
    encode, write, skip, one = loaded(tmp_path, way)
    special = [">>deu<<"] if way == "tokenizers" else {"extra_special_tokens": [">>deu<<"]}
    one.add_special_tokens(special)
    one.add_tokens(["zzz"])
    ids = encode("the>>deu<< house zzz is")
    assert {285, 286} < set(ids)
    assert write(ids) == "the>>deu<< house zzz is" and skip(ids) == "the house zzz is"


def test_raw_text_is_only_text_but_for_what_a_user_added():
    tokenizer = trained()
    tokenizer.add_special_tokens({"extra_special_tokens": [">>deu<<"]})
    tokenizer.add_tokens(["<sep>"], special_tokens=True)
    reader, text = plain_text(tokenizer), ">>deu<< a <pad> b</s> <BT><sep>"
    ids = reader(text)["input_ids"]
    assert [token for token in reader.convert_ids_to_tokens(ids) if len(token) > 3] == [">>deu<<", "<sep>", "</s>"]
    assert reader.decode(ids, skip_special_tokens=True) == "a <pad> b</s> <BT>"
    assert {0, 2} < set(tokenizer(text)["input_ids"])
    for text in ("a <pad> b</s> c", "  two  spaces ", "\U0001f600 é\n"):
        assert reader.decode(reader(text)["input_ids"], skip_special_tokens=True) == text


def test_words_stay_apart_in_a_tokenizer_without_a_space_before_a_text():
    tokenizer = trained(begins=True, ends=False)
    for words in (["the", "house"], ["the", "house", "is"]):
        found = tokenizer(words, is_split_into_words=True)
        assert found["input_ids"] == tokenizer(" ".join(words))["input_ids"]
        assert set(found.word_ids()) == {None, *range(len(words))}
    batch = tokenizer([["the", "house"], ["das"]], is_split_into_words=True)["input_ids"]
    assert batch == tokenizer(["the house", "das"])["input_ids"]
