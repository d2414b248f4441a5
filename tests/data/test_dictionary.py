import re

from vanilla_transformer.data.cmudict import SPLITS, read_cmudict
from vanilla_transformer.data.corpus import corpus_languages, read_corpus


def test_the_splits_have_the_published_sizes_and_share_no_word(tmp_path, monkeypatch):
    splits = {split: read_cmudict(split) for split in SPLITS}
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 124_229, "dev": 2_735, "test": 6_703}
    words = {split: {word for word, _ in pairs} for split, pairs in splits.items()}
    assert {split: len(them) for split, them in words.items()} == {"train": 116_089, "dev": 2_565, "test": 6_272}
    assert len(set.union(*words.values())) == 116_089 + 2_565 + 6_272
    pairs = [pair for several in splits.values() for pair in several]
    assert all(re.fullmatch(r"[a-z']+", word) for word, _ in pairs)
    assert all(re.fullmatch(r"[A-Z]+( [A-Z]+)*", phonemes) for _, phonemes in pairs)  # Without stress.
    pronunciations = sorted(phonemes for word, phonemes in pairs if word == "tomato")
    assert pronunciations == ["T AH M AA T OW", "T AH M EY T OW"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cmudict").mkdir()  # The built-in corpus is meant all the same.
    corpus = read_corpus(["cmudict:dev"])
    assert corpus_languages(corpus) == ("en", None)
    assert list(zip(corpus["source"], corpus["target"], strict=True)) == splits["dev"]
