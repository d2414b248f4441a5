"""Scoring a model on a corpus: which lines are an item, and what is decoded."""

import pytest
from datasets import Dataset
from datasets.info import SupervisedKeysData
from refusals import refused
from small_models import CopyingModel

from vanilla_transformer.data.corpus import read_corpus
from vanilla_transformer.data.sources import PAIRS, one_corpus
from vanilla_transformer.errors import CorpusError, SettingError
from vanilla_transformer.evaluation import evaluate_translation, score
from vanilla_transformer.evaluation.corpora import with_columns_of_model
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tokenizer import train_tokenizer
from vanilla_transformer.translation import Translator

SOURCES = ["a b", "c", "a b", "d e f", "a b"]
TARGETS = ["a b", "x", "a c", "d e", "y"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SOURCES, vocab_size=260)


@pytest.fixture
def model():
    return CopyingModel()


@pytest.fixture
def corpus():
    return Dataset.from_dict({"source": SOURCES, "target": TARGETS})


def test_each_distinct_source_is_decoded_once(model, tokenizer, corpus):
    evaluation = evaluate_translation(Translator(model, tokenizer, num_beams=2), corpus, ["chrf"])
    assert model.search == {"num_beams": 2}
    assert sum(map(len, model.batches)) == evaluation.figures["distinct_sources"] == 3
    assert evaluation.predictions == SOURCES
    assert evaluation.references == TARGETS
    assert evaluation.figures["seconds"] > 0 and evaluation.figures["target_tokens_per_second"] > 0


def test_lines_of_one_source_are_one_item_for_error_rates_only(model, tokenizer, corpus):
    wer, bleu, per = evaluate_translation(
        Translator(model, tokenizer), corpus, ["wer", "sacrebleu", "per"]
    ).scores.values()
    # "a b" is right by its first reference; "c" and "d e f" are wrong; edits: 0 of 2, 1 of 1, 1 of 2 tokens.
    assert wer.value == pytest.approx(100 * 2 / 3)
    assert per.value == pytest.approx(100 * 2 / 5)
    assert "items:3|nrefs:1-3" in wer.signature
    assert [bleu] == score(["sacrebleu"], SOURCES, [[target] for target in TARGETS])
    corpus.info.supervised_keys = SupervisedKeysData("en", "zh_CN")
    assert (
        "tok:zh"
        in evaluate_translation(Translator(model, tokenizer), corpus, ["sacrebleu"]).scores["sacrebleu"].signature
    )


def test_split_references_are_joined_as_translations_are(model):
    split, whole = ["ein ju@@ n@@ ge .", "g-@@ gras"], ["ein junge .", "g-gras"]
    tokenizer = train_tokenizer(split, algorithm="presplit")
    for targets in (split, whole):
        corpus = Dataset.from_dict({"source": split, "target": targets})
        evaluation = evaluate_translation(Translator(model, tokenizer, num_beams=1), corpus, ["wer", "chrf"])
        assert evaluation.predictions == evaluation.references == whole
        assert [score.value for score in evaluation.scores.values()] == pytest.approx([0, 100])


def test_an_unknown_metric_is_refused_before_anything_is_decoded_and_an_empty_corpus(model, tokenizer, corpus):
    with refused(SettingError, "did you mean", "'sacrebleu'"):
        evaluate_translation(Translator(model, tokenizer), corpus, ["sacrebluu"])
    assert not model.batches
    with refused(CorpusError, "empty"):
        evaluate_translation(Translator(model, tokenizer), Dataset.from_dict({"source": [], "target": []}), ["wer"])


def test_a_table_is_scored_by_the_columns_that_a_translation_model_was_trained_with(tmp_path):
    recipe = Recipe.of(train=("train.tsv",), source_column="english", target_column="german")
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    table = tmp_path / "test.tsv"
    table.write_text("german\tenglish\neins\tone\n")
    found = read_corpus(with_columns_of_model(one_corpus(str(table)), str(tmp_path), PAIRS))
    assert found[0] == {"line": 2, "source": "one", "target": "eins"}
    for words in (("a.en", "a.de"), "cmudict:dev", (str(table), "source_column=german")):
        assert with_columns_of_model(one_corpus(words), str(tmp_path), PAIRS) == one_corpus(words)
