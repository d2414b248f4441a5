"""Text becomes tokens once: what the tokenizer gives, without rows that are empty or too long, whole or not at all."""

import dataclasses

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import HealthCheck, given, settings, strategies as st
from refusals import refused
from tokenizers import Tokenizer
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from vanilla_transformer.data.preparation import PreparationReport, StoredCorpus, prepare_corpus
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.model.tokenization_vanilla_transformer import plain_text
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task
from vanilla_transformer.tokenizer import train_tokenizer

ENCODER = get_task("translation").encoder(Recipe())
ROWS = [
    ("a dog", "ein Hund"),
    ("", "nichts"),
    ("two dogs run", "zwei Hunde rennen"),
    ("white space", " \u3000\t"),
    ("a " * 40, "zu lang"),
    ("</s> is text", "<pad> auch"),
    ("kurz", "lang " * 40),
    ("the last one", "der letzte"),
]
KEPT = [0, 2, 5, 7]


def corpus_of(rows):
    return Dataset.from_dict({"source": [row[0] for row in rows], "target": [row[1] for row in rows]})


def as_lists(corpus):
    rows = corpus.rows(range(len(corpus)))
    return [(source.tolist(), target.tolist()) for source, target in zip(rows["source"], rows["target"], strict=True)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([text for row in ROWS for text in row], 270, lowercase=True)


@pytest.fixture
def prepare(tmp_path, tokenizer):
    def call(rows=ROWS, **changed):
        corpus = corpus_of(rows) if isinstance(rows, list) else rows
        arguments = {"tokenizer": tokenizer, "encoder": ENCODER, "max_length": 30, "directory": tmp_path / "prepared"}
        return prepare_corpus(corpus, **{**arguments, **changed})

    return call


@pytest.mark.parametrize("which", ["ours", "fast", "slow"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), max_size=8))
def test_rows_are_what_any_tokenizer_gives_without_empty_and_long_ones(prepare, tokenizer, which, texts):
    inner = tokenizer.backend_tokenizer
    theirs = {
        "ours": tokenizer,
        "fast": PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(inner.to_str())),
        "slow": ByT5Tokenizer(),
    }[which]
    texts = [tuple(text.encode(errors="replace").decode() for text in row) for row in [*texts, *ROWS]]
    reader = plain_text(theirs)
    rows = [
        (reader(source)["input_ids"], reader(text_target=target)["input_ids"])
        for source, target in texts
        if source.strip() and target.strip()
    ]
    kept = [row for row in rows if max(map(len, row)) <= 30]
    prepared = prepare(texts, tokenizer=theirs)
    assert as_lists(prepared) == kept
    assert prepared.report == PreparationReport(len(texts), len(kept), len(texts) - len(rows), len(rows) - len(kept))
    assert {name: lengths.tolist() for name, lengths in prepared.lengths.items()} == {
        "source": [len(source) for source, _ in kept],
        "target": [len(target) for _, target in kept],
    }


def test_rows_come_in_the_order_asked_for_over_many_batches(prepare):
    rows = [(f"number {number}", f"Zahl {number}") for number in range(2_500)]
    prepared = prepare(rows)
    order = np.random.default_rng(0).permutation(len(prepared))
    found, whole = prepared.rows(order), as_lists(prepared)
    assert [ids.tolist() for ids in found["target"]] == [whole[row][1] for row in order]


def test_earlier_calls_of_the_tokenizer_change_no_row(prepare, tokenizer):
    expected = as_lists(prepare())
    tokenizer("something", padding="max_length", max_length=9, truncation=True)
    tokenizer("something", split_special_tokens=False)
    assert as_lists(prepare(ROWS[1:])) == expected[1:]


def test_a_row_exactly_as_long_as_allowed_is_kept_and_a_corpus_of_none_refused(prepare, tokenizer):
    length = len(tokenizer("a dog runs")["input_ids"])
    assert len(prepare([("a dog runs", "x")], max_length=length)) == 1
    with refused(CorpusError, "1", str(length - 1)):
        prepare([("a dog runs", "x")], max_length=length - 1)


def test_a_dataset_in_hand_needs_its_columns_of_text_and_a_null_is_empty(prepare):
    some = Dataset.from_dict({"source": ["a", None], "target": ["b", "c"]})
    assert prepare(some).report.dropped_empty == prepare(some.with_format("arrow")).report.dropped_empty == 1
    with refused(CorpusError, "streaming"):
        prepare(some.to_iterable_dataset())
    with refused(CorpusError, "'source'", "'en'"):
        prepare(Dataset.from_dict({"en": ["a"], "target": ["b"]}))
    with refused(CorpusError, "'target'", "int64"):
        prepare(Dataset.from_dict({"source": ["a"], "target": [1]}))


def test_the_hash_of_tokens_follows_the_tokens_alone(prepare, tmp_path):
    one = prepare().tokens
    assert prepare([("", "dropped"), *ROWS], directory=tmp_path / "more").tokens == one
    assert prepare([*ROWS[1:], ROWS[0]], directory=tmp_path / "other").tokens != one
    assert prepare([row[::-1] for row in ROWS], directory=tmp_path / "turned").tokens != one
    shifted = [*ROWS[:-2], ("kur", ROWS[-2][1]), ("zthe last one", ROWS[-1][1])]
    assert prepare(shifted, directory=tmp_path / "shifted").tokens != one


def forbidden(texts, tokenizer):
    raise AssertionError("tokenized again")


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [*ROWS[:-1], ("the last one", "der letztE")]},
        {"max_length": 29},
        {"tokenizer": train_tokenizer(["other text"], 262)},
        {"encoder": dataclasses.replace(ENCODER, encode=forbidden, settings=("other",))},
    ],
)
def test_the_same_again_is_opened_and_another_text_limit_tokenizer_or_setting_makes_it_anew(prepare, change):
    first, opening = prepare(), {"encoder": dataclasses.replace(ENCODER, encode=forbidden)}
    again = prepare(**opening)
    assert as_lists(again) == as_lists(first) and again.report == first.report
    with refused(AssertionError, "tokenized again"):
        prepare(**opening | change)


@pytest.mark.parametrize("place", [0, 2])
def test_an_interruption_leaves_nothing_that_is_taken_for_tokens(prepare, tmp_path, place):
    rows = [(f"number {number}", f"Zahl {number}") for number in range(2_500)]
    whole, calls = as_lists(prepare(rows, directory=tmp_path / "whole")), []

    def encode(texts, tokenizer):
        calls.append(texts)
        if len(calls) > place:
            raise KeyboardInterrupt
        return ENCODER.encode(texts, tokenizer)

    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "report.json").touch()  # Of somebody else.
    with pytest.raises(KeyboardInterrupt):
        prepare(rows, encoder=dataclasses.replace(ENCODER, encode=encode))
    with refused(CorpusError, "prepared"):
        StoredCorpus(tmp_path / "prepared")
    assert as_lists(prepare(rows)) == whole
    assert {path.name for path in (tmp_path / "prepared").iterdir()} == {"report.json", "tokens.arrow", "tokens.json"}


@pytest.mark.parametrize("cut", [0, 100])
@pytest.mark.parametrize("name", ["tokens.json", "tokens.arrow"])
def test_files_that_are_cut_or_foreign_are_made_anew(prepare, tmp_path, name, cut):
    rows = [(f"number {number}", f"Zahl {number}") for number in range(2_500)]
    whole, path = as_lists(prepare(rows)), tmp_path / "prepared" / name
    path.write_bytes(path.read_bytes()[:-cut] if cut else b"null")
    assert as_lists(prepare(rows)) == whole
