import json
import re
import string
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from refusals import refused
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.errors import VocabularyError
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer, plain_text
from vanilla_transformer.tokenizer import ALGORITHMS, train_tokenizer

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
TEXTS = [
    "The cat doesn't sit on the mat, it sits on the other cat's mat.",
    "Die Katze sitzt über der Matte; übermäßig schöne Mäuse tanzen: 1912, 2017!",
    "L’homme n'a pas d'idée où est l'île. नमस्ते दुनिया, هذا نص, 你好世界 🙂🙂",
    "I wrote </s></s></s> and <s> and <pad><pad> and <unk> for </s> and </s>. </s>",
] * 3

SPLIT = ["über sa@@ f@@ ti@@ g-@@ grünes gras .", "das gras ist über dem sa@@ nd .", "das </s> und ein@@ </s> ."]

AutoTokenizer.register(VanillaTransformerConfig, tokenizer_class=VanillaTransformerTokenizer, exist_ok=True)

tricky_texts = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from([*SPECIAL, " ", "   ", "\n", "\r\n", "\t", "\u2581", "\u0120", "e\u0301", "\u0000", "\ufeff"]),
        st.sampled_from(["👩\u200d👩\u200d👧", "❤\ufe0f", "می\u200cخواهم", "don't", "12", "’", "</ s>", "ß", "##ing"]),
    ),
    max_size=8,
).map("".join)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[VanillaTransformerTokenizer]]:
    """For each algorithm a tokenizer as it was trained, and as it was loaded."""
    trained = {algorithm: train(algorithm) for algorithm in ALGORITHMS}
    directory = tmp_path_factory.mktemp("tokenizers")
    return {name: [tokenizer, reloaded(tokenizer, directory / name)] for name, tokenizer in trained.items()}


def train(algorithm: str, **settings: Any) -> VanillaTransformerTokenizer:
    size = {"character": 280, "presplit": None}.get(algorithm, 400)
    return train_tokenizer(TEXTS, size, algorithm, **settings)


def reloaded(tokenizer: VanillaTransformerTokenizer, directory: Path) -> VanillaTransformerTokenizer:
    """Saved beside a model's configuration and loaded by `AutoTokenizer`."""
    VanillaTransformerConfig(vocab_size=len(tokenizer)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return AutoTokenizer.from_pretrained(directory)


def decoded(tokenizer: VanillaTransformerTokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("")
@example(" ")
@example("  two before, two after  ")
@example("\ufdd0\ufdd0 a")
@example(" \ufdd0a")
@example("\n")
@example("\u2581a\u2581")
@example("".join(SPECIAL))
@example("a@@ b @@ c@@\nd@@")
@given(text=tricky_texts)
def test_any_text_comes_back_exactly_before_and_after_saving(
    tokenizers: dict[str, list[VanillaTransformerTokenizer]], algorithm: str, text: str
):
    trained, loaded = tokenizers[algorithm]
    ids = plain_text(trained)(text)["input_ids"]
    assert plain_text(loaded)(text)["input_ids"] == ids
    expected = re.sub(r"@@( |\Z)", "", text) if algorithm == "presplit" else text
    for tokenizer in (trained, loaded):
        assert decoded(tokenizer, ids) == tokenizer.detokenize(text) == expected
        assert tokenizer.batch_decode([ids, [2]], skip_special_tokens=True) == [expected, ""]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(tricky_texts, min_size=1, max_size=3))
def test_plain_text_is_never_taken_for_control(
    tokenizers: dict[str, list[VanillaTransformerTokenizer]], algorithm: str, texts: list[str]
):
    for tokenizer in map(plain_text, tokenizers[algorithm]):
        batch = tokenizer(texts, text_target=texts)
        for ids in (*batch["input_ids"], *batch["labels"], tokenizer(text_target=texts[0])["input_ids"]):
            assert ids[-1] == tokenizer.eos_token_id
            assert not set(ids[:-1]) & set(range(4))


@pytest.mark.parametrize("algorithm", ["bpe", "wordpiece"])
def test_no_piece_is_learned_that_spells_a_special_token(algorithm: str):
    corpus = ["</s></s></s> </s> a</s>b <pad><s><unk> </s>'</s> s<pad>s"] * 50
    tokenizer = train_tokenizer(corpus, 10_000, algorithm, or_fewer=True)
    assert sorted(token for token in tokenizer.get_vocab() if token.strip("Ġ'") in SPECIAL) == sorted(SPECIAL)
    assert plain_text(tokenizer)("</s>")["input_ids"].count(tokenizer.eos_token_id) == 1
    again = tokenizer.train_new_from_iterator(["Häuser"] * 2, 300)
    assert decoded(again, again("neue Häuser")["input_ids"]) == "neue Häuser"


def test_same_texts_give_the_same_vocabulary_in_another_process():
    script = (
        "import json, sys\n"
        "from vanilla_transformer.tokenizer import ALGORITHMS, train_tokenizer\n"
        "texts = json.load(sys.stdin)\n"
        "trained = [train_tokenizer(texts, 270, algorithm) for algorithm in ALGORITHMS]\n"
        "json.dump([tokenizer.backend_tokenizer.to_str() for tokenizer in trained], sys.stdout)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(TEXTS), capture_output=True, text=True, check=True
    ).stdout
    trained = [train_tokenizer(TEXTS, 270, algorithm) for algorithm in ALGORITHMS]
    assert json.loads(output) == [tokenizer.backend_tokenizer.to_str() for tokenizer in trained]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=15, deadline=None)
@given(texts=st.lists(st.text("abcé 你 </s>'", max_size=20), max_size=6), vocab_size=st.integers(260, 300))
def test_vocabulary_has_the_size_asked_for_or_the_error_tells_the_largest(
    algorithm: str, texts: list[str], vocab_size: int
):
    try:
        tokenizer = train_tokenizer(iter(texts), vocab_size, algorithm)
    except VocabularyError as error:
        fewer = train_tokenizer(texts, vocab_size, algorithm, or_fewer=True)
        assert 260 <= (available := len(fewer)) < vocab_size
        assert f"at most {available} entries, not {vocab_size}" in str(error)
        with pytest.raises(VocabularyError):
            train_tokenizer(texts, available + 1, algorithm)
        tokenizer = train_tokenizer(texts, available, algorithm)
        assert tokenizer.backend_tokenizer.to_str() == fewer.backend_tokenizer.to_str()
        vocab_size = available
    assert len(tokenizer) == vocab_size
    assert sorted(tokenizer.get_vocab().values()) == list(range(vocab_size))
    assert tokenizer.convert_tokens_to_ids(SPECIAL) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("texts", "vocab_size", "algorithm", "named"),
    [
        (TEXTS, 259, "bpe", "260"),
        (TEXTS, None, "bpe", "vocab_size"),
        (TEXTS, 2**31 - 1, "wordpiece", "vocab_size"),
        (TEXTS, 300, "bpee", "'bpee'"),
        ("one text", 300, "bpe", "texts"),
    ],
)
def test_wrong_arguments_are_named(texts: list[str], vocab_size: Any, algorithm: str, named: str):
    with refused(ValueError, *named.split()):
        train_tokenizer(texts, vocab_size, algorithm)


def test_punctuation_and_digits_stand_apart_from_words():
    pieces = {token.removeprefix("Ġ") for token in train("bpe").get_vocab() if token not in SPECIAL}
    assert {"mat", "cat's"} <= pieces
    assert not [piece for piece in pieces if set(piece) & set(string.ascii_letters) and set(piece) & set(",.;!?<>")]
    assert not [piece for piece in pieces if len(piece) > 1 and set(piece) & set(string.digits)]


def test_split_text_keeps_its_pieces_and_comes_back_in_words():
    tokenizer = train_tokenizer(SPLIT, algorithm="presplit")
    pieces = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(SPLIT[0]))
    assert len(pieces) == len(SPLIT[0].split())
    assert decoded(tokenizer, pieces) == "über saftig-grünes gras ."


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_mask_token_is_found_in_text_and_changes_no_other(algorithm: str):
    size = None if algorithm == "presplit" else 280
    plain = train_tokenizer(TEXTS, size, algorithm)
    made = train_tokenizer(TEXTS, size and size + 1, algorithm, mask_token=True)
    assert len(made) == len(plain) + 1 and made.mask_token_id == len(plain)
    for text in ("the cat", "  two é\n", "<masked", "(mask>"):
        assert made(text)["input_ids"] == plain(text)["input_ids"]
    for reader in (made, plain_text(made)):
        assert reader("a <mask>(<mask>)")["input_ids"].count(made.mask_token_id) == 2


@pytest.mark.parametrize("way", ["with the package", "without it", "tokenizers"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_special_tokens_are_found_skipped_and_written_alike(algorithm: str, way: str, tmp_path: Path):
    tokenizer = train(algorithm, mask_token=True)
    tokenizer.add_special_tokens({"extra_special_tokens": [">>deu<<"]})
    tokenizer.add_tokens(["<sep>"], special_tokens=True)
    tokenizer.add_tokens(["zzz", "für."])
    tokenizer.save_pretrained(tmp_path)
    if way == "tokenizers":
        alone = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        encode, decode = (lambda text: alone.encode(text, add_special_tokens=False).ids), alone.decode
    else:
        one = (AutoTokenizer if way == "with the package" else PreTrainedTokenizerFast).from_pretrained(tmp_path)
        assert isinstance(one, VanillaTransformerTokenizer) == (way == "with the package")
        encode, decode = (lambda text: one(text, add_special_tokens=False)["input_ids"]), one.decode
    for text, plain in (
        (">>deu<<the house</s>", "the house"),
        ("the</s> house <sep> is", "the house  is"),
        ("das zzz  zzzHaus", "das zzz  zzzHaus"),
        (" zzz>>deu<< ist<pad>", " zzz ist"),
        ("the(<mask>)", "the()"),
        ("für.für. zzz", "für.für. zzz"),
    ):
        ids = encode(text)
        assert decode(ids, skip_special_tokens=False) == text and decode(ids, skip_special_tokens=True) == plain
        named = [str(token) for token in tokenizer.all_special_tokens] + ["<sep>", "zzz", "für."]
        assert all(ids.count(tokenizer.convert_tokens_to_ids(name)) == text.count(name) for name in named)


def test_raw_text_is_only_text_but_for_what_a_user_added():
    tokenizer = train("bpe")
    tokenizer.add_special_tokens({"extra_special_tokens": [">>deu<<"]})
    tokenizer.add_tokens(["<sep>"], special_tokens=True)
    reader, text = plain_text(tokenizer), ">>deu<< a <pad> b</s> <BT><sep>"
    ids = reader(text)["input_ids"]
    assert [token for token in reader.convert_ids_to_tokens(ids) if len(token) > 3] == [">>deu<<", "<sep>", "</s>"]
    assert reader.decode(ids, skip_special_tokens=True) == "a <pad> b</s> <BT>"
    assert {0, 2} < set(tokenizer(text)["input_ids"])


def test_words_stay_apart_in_a_tokenizer_without_a_space_before_a_text():
    tokenizer = train("bpe", begins=True, ends=False)
    for words in (["the", "house"], ["the", "house", "is"]):
        found = tokenizer(words, is_split_into_words=True)
        assert found["input_ids"] == tokenizer(" ".join(words))["input_ids"]
        assert set(found.word_ids()) == {None, *range(len(words))}
    batch = tokenizer([["the", "house"], ["das"]], is_split_into_words=True)["input_ids"]
    assert batch == tokenizer(["the house", "das"])["input_ids"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lowercasing_applies_to_text_but_not_to_targets(algorithm, tmp_path):
    size = None if algorithm == "presplit" else 260
    tokenizer = train_tokenizer(["hello", "HH AH"], size, algorithm, lowercase=True)
    tokenizer.save_pretrained(tmp_path)
    for either in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert either("HeLLo")["input_ids"] == either("hello")["input_ids"]
        both = either("HeLLo", text_target="HH AH")
        assert both["input_ids"] == either("hello")["input_ids"]
        assert either.decode(both["labels"], skip_special_tokens=True) == "HH AH"
        with pytest.raises(ValueError, match="must be of type"):
            either("HeLLo", text_target=[None])
        assert either.encode("HeLLo") == either.encode("hello")
        assert either.decode(either("HH AH")["input_ids"], skip_special_tokens=True) == "hh ah"


def test_a_target_that_one_thread_reads_leaves_the_sources_of_others_alone():
    tokenizer = train_tokenizer(["hello", "HH AH"], 260, lowercase=True)
    expected = tokenizer("HELLO")["input_ids"]
    started, stop = threading.Event(), threading.Event()

    def read_targets():
        while not stop.is_set():
            assert tokenizer.detokenize("HH AH") == "HH AH"
            started.set()

    thread = threading.Thread(target=read_targets)
    thread.start()
    try:
        assert started.wait(60)
        assert all(tokenizer("HELLO")["input_ids"] == expected for _ in range(2000))
    finally:
        stop.set()
        thread.join()
    tokenizer.add_tokens(["PHONE"])
    assert tokenizer.convert_tokens_to_ids("PHONE") in tokenizer(text_target="HH PHONE")["input_ids"]
    # Nor does a reader of plain text leave its own reading behind, for another thread to meet.
    found = tokenizer("a</s>")["input_ids"]
    assert plain_text(tokenizer)("a</s>")["input_ids"] != found
    assert tokenizer.backend_tokenizer.encode("a</s>").ids == found
