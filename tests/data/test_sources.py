import pytest
from refusals import refused

from vanilla_transformer.data.sources import CorpusSpec, parse_corpora, to_words
from vanilla_transformer.errors import CorpusError


def test_plus_separates_corpora_and_settings_belong_to_their_own():
    words = "news.en news.de weight=0.7 + weight=3e-1 org/name:train source_column=en target-column=de"
    corpora = parse_corpora(words.split())
    assert corpora == (
        CorpusSpec(("news.en", "news.de"), weight=0.7),
        CorpusSpec(("org/name:train",), weight=0.3, columns={"source_column": "en", "target_column": "de"}),
    )
    assert parse_corpora(to_words(corpora)) == corpora
    assert [source.weight for source in parse_corpora(["a.tsv", "+", "b.tsv"])] == [None, None]


def test_a_file_that_exists_or_a_word_that_is_no_setting_is_taken_for_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weight=1").touch()
    for word in ("weight=1", "data/split=train.tsv", "lang=de.tsv"):
        assert parse_corpora([word]) == (CorpusSpec((word,)),)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("a.tsv weight=0", "a.tsv weight '0'"),
        ("a.tsv weight=nan", "weight greater than 0"),
        ("a.tsv b.tsv weight=1 weight=2", "weight '1' '2'"),
        ("a.tsv source_column=en source-column=de", "source_column"),
        ("a.tsv weight=1 + b.tsv", "b.tsv weight"),
        ("a.tsv +", "no corpus +"),
    ],
)
def test_impossible_corpora_are_refused_in_one_sentence(words, named):
    with refused(CorpusError, *named.split()):
        parse_corpora(words.split())
