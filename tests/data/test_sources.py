import pytest
from refusals import refused

from vanilla_transformer.data.sources import CorpusSpec, corpora_from_values, parse_corpora, parse_corpus, to_words
from vanilla_transformer.errors import CorpusError


def test_one_corpus_is_its_words():
    assert parse_corpora(["a.en", "a.de"]) == (CorpusSpec(("a.en", "a.de")),)
    assert parse_corpora(("wmt14:de-en:train",)) == (CorpusSpec(("wmt14:de-en:train",)),)


def test_plus_separates_corpora_and_settings_belong_to_their_own():
    words = "news.en news.de weight=0.7 + weight=3e-1 org/name:train source_column=en target-column=de"
    assert parse_corpora(words.split()) == (
        CorpusSpec(("news.en", "news.de"), weight=0.7),
        CorpusSpec(("org/name:train",), weight=0.3, source_column="en", target_column="de"),
    )
    assert [source.weight for source in parse_corpora(["a.tsv", "+", "b.tsv"])] == [None, None]


def test_a_file_that_exists_is_taken_for_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "split=train.tsv").write_text("a\tb\n")
    assert parse_corpora(["split=train.tsv"]) == (CorpusSpec(("split=train.tsv",)),)
    (tmp_path / "weight=1").touch()
    assert parse_corpora(["weight=1"]) == (CorpusSpec(("weight=1",)),)


def test_a_word_that_is_like_no_setting_is_taken_for_a_file():
    assert parse_corpora(["data/split=train.tsv"]) == (CorpusSpec(("data/split=train.tsv",)),)
    assert parse_corpora(["lang=de.tsv"]) == (CorpusSpec(("lang=de.tsv",)),)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("a.tsv wieght=1", "'wieght' 'weight' source_column"),
        ("a.tsv sorce_column=en", "'source_column'"),
        ("a.tsv weight=0", "a.tsv weight '0'"),
        ("a.tsv weight=-1", "weight greater than 0"),
        ("a.tsv weight=nan", "weight greater than 0"),
        ("a.tsv weight=inf", "weight greater than 0"),
        ("a.tsv weight=much", "'much'"),
        ("a.tsv b.tsv weight=1 weight=2", "weight '1' '2'"),
        ("a.tsv source_column=en source-column=de", "source_column"),
        ("a.tsv weight=1 + b.tsv", "b.tsv weight"),
        ("a.tsv +", "no corpus +"),
        ("+ a.tsv", "no corpus +"),
        ("a.tsv + weight=1", "weight=1"),
    ],
)
def test_impossible_corpora_are_refused_in_one_sentence(words, named):
    with refused(CorpusError, *named.split()):
        parse_corpora(words.split())


def test_held_out_text_is_one_corpus():
    assert parse_corpus(["a.tsv", "source_column=en"]) == CorpusSpec(("a.tsv",), source_column="en")
    for words in ("a.tsv + b.tsv", "a.tsv weight=1"):
        with refused(CorpusError, "mixed"):
            parse_corpus(words.split())


def test_mappings_of_yaml_mean_the_same_as_words():
    mappings = [
        {"corpus": ["news.en", "news.de"], "weight": 0.7},
        {"corpus": "org/name:train", "weight": 2, "source_column": "en", "target_column": "de"},
    ]
    words = "news.en news.de weight=0.7 + "
    words += "org/name:train weight=2 source_column=en target_column=de"
    corpora = corpora_from_values(mappings)
    assert corpora == parse_corpora(words.split()) and to_words(corpora) == words.split()
    assert [corpus.to_mapping() for corpus in corpora] == [mappings[0], mappings[1] | {"corpus": ["org/name:train"]}]
    assert corpora_from_values([["a.en", "a.de"], "b.tsv"]) == parse_corpora(["a.en", "a.de", "+", "b.tsv"])


def test_words_and_corpora_are_taken_as_they_are():
    for words in ("a.tsv", ["a.tsv"], ("a.tsv",), CorpusSpec(("a.tsv",)), [CorpusSpec(("a.tsv",))]):
        assert corpora_from_values(words) == (CorpusSpec(("a.tsv",)),)
    assert corpora_from_values([]) == ()
    assert corpora_from_values(None) is corpora_from_values(3) is None


@pytest.mark.parametrize(
    ("corpora", "named"),
    [
        ([{"weight": 0.7}], "corpus: NAME corpus: [FILE, FILE]"),
        ([{"corpus": 3}], "corpus: NAME"),
        ([{"corpus": []}], "corpus: NAME"),
        (["a.tsv", None], "corpus: NAME"),
        ([{"corpus": "a.tsv", "wieght": 0.7}], "'weight'"),
    ],
)
def test_mappings_that_say_no_corpus_are_refused(corpora, named):
    with refused(CorpusError, *named.split()):
        corpora_from_values(corpora)
