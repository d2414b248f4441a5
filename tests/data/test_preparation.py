import io
import json
import math
import pickle
from itertools import chain

import numpy as np
import pytest
from datasets import Dataset, concatenate_datasets
from faults import small_files, standard_streams
from refusals import refused

from vanilla_transformer.data.preparation import StoredCorpus, prepare_corpus
from vanilla_transformer.data.token_corpus import PreparationReport
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.plain_text import plain_text
from vanilla_transformer.tasks import get_task

TASK = get_task("translation")

PAIRS = [
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


def corpus_of(pairs):
    sources, targets = zip(*pairs, strict=True)
    return Dataset.from_dict({"source": sources, "target": targets})


@pytest.fixture(scope="module")
def tokenizer():
    return VanillaTransformerTokenizer.train([text for pair in PAIRS for text in pair], 270)


class Watched:
    """The task of translation, which notes what it encodes, until it raises an error."""

    def __init__(self):
        self.texts, self.left, self.error = [], math.inf, AssertionError("the corpus was tokenized again")

    def __getattr__(self, name):
        return getattr(TASK, name)

    def encode(self, texts, tokenizer):
        self.left -= 1
        if self.left < 0:
            raise self.error
        self.texts += chain.from_iterable(texts.values())
        return TASK.encode(texts, tokenizer)


@pytest.fixture
def task():
    return Watched()


@pytest.fixture
def prepare(tmp_path, tokenizer, task):
    def call(pairs=PAIRS, **changed):
        corpus = corpus_of(pairs) if isinstance(pairs, list) else pairs
        arguments = {"tokenizer": tokenizer, "max_length": 30, "directory": tmp_path / "prepared"}
        return prepare_corpus(corpus, task=task, **{**arguments, "progress": False, **changed})

    return call


@pytest.fixture
def forbid_tokenizing(task):
    return lambda: setattr(task, "left", 0)


def as_lists(rows):
    return [(source.tolist(), target.tolist()) for source, target in zip(rows["source"], rows["target"], strict=True)]


def expected_rows(tokenizer, pairs):
    reader = plain_text(tokenizer)
    return [(reader(source)["input_ids"], reader(text_target=target)["input_ids"]) for source, target in pairs]


@pytest.mark.parametrize("pairs_per_table", [1, 3, 10_000])
def test_rows_are_what_the_tokenizer_gives(prepare, tokenizer, streamed, pairs_per_table):
    prepared = prepare(streamed(PAIRS, pairs_per_table))
    expected = expected_rows(tokenizer, [PAIRS[index] for index in KEPT])
    assert as_lists(prepared.rows(range(len(prepared)))) == expected
    assert as_lists(prepared.rows(np.array([3, 0, 3]))) == [expected[3], expected[0], expected[3]]
    assert list(prepared.lengths) == ["source", "target"]
    for lengths, column in zip(prepared.lengths.values(), zip(*expected, strict=True), strict=True):
        assert lengths.tolist() == list(map(len, column)) and lengths.dtype == np.int32


def test_earlier_calls_of_the_tokenizer_change_no_row(prepare, tokenizer):
    expected = expected_rows(tokenizer, [PAIRS[index] for index in KEPT])
    tokenizer("something", padding="max_length", max_length=9, truncation=True)
    assert as_lists(prepare().rows(range(len(KEPT)))) == expected
    tokenizer("something", split_special_tokens=False)
    assert as_lists(prepare(PAIRS[1:]).rows(range(len(KEPT) - 1))) == expected[1:]


def test_dropped_pairs_are_counted_and_told(prepare):
    report = prepare().report
    assert report == PreparationReport(read=8, kept=4, dropped_empty=2, dropped_too_long=2)
    assert str(report) == "4 of 8 pairs, without 2 with an empty side and 2 that are too long"
    assert str(PreparationReport(1200, 1200, 0, 0)) == "1,200 of 1,200 pairs"


def test_a_pair_exactly_as_long_as_allowed_is_kept(prepare, tokenizer):
    length = len(tokenizer("a dog runs")["input_ids"])
    assert len(prepare([("a dog runs", "x")], max_length=length)) == 1
    with refused(CorpusError, "1 pairs", f"more than {length - 1}"):
        prepare([("a dog runs", "x")], max_length=length - 1)


def test_ids_take_two_bytes_where_that_is_enough(prepare):
    assert {ids[0].dtype for ids in prepare().rows([0]).values()} == {np.dtype(np.uint16)}


def test_certainly_too_long_texts_are_counted_without_tokenization(prepare, tokenizer, task):
    longest = 30 * max(map(len, tokenizer.get_vocab()))
    report = prepare([*PAIRS, ("a" * (longest + 1), "a"), ("a", "ab" * longest)]).report
    assert report == PreparationReport(read=10, kept=4, dropped_empty=2, dropped_too_long=4)
    assert 0 < max(map(len, task.texts)) <= longest


def test_the_tokens_have_a_hash_of_their_own(prepare, tmp_path):
    one = prepare().tokens
    assert prepare([("", "dropped"), *PAIRS], directory=tmp_path / "more").tokens == one
    halves = concatenate_datasets([corpus_of(PAIRS[:3]), corpus_of(PAIRS[3:])])
    assert prepare(halves, directory=tmp_path / "halves").tokens == one
    assert prepare([*PAIRS[1:], PAIRS[0]], directory=tmp_path / "other").tokens != one
    assert prepare([pair[::-1] for pair in PAIRS], directory=tmp_path / "turned").tokens != one


def test_a_full_disk_is_named_with_the_file(prepare, tmp_path):
    pairs = [(f"a dog {number}", "ein Hund " * 3) for number in range(4000)]
    with small_files(1 << 16), refused(OSError, "prepared/tokens.arrow", "File too large", "free"):
        prepare(pairs)
    assert list((tmp_path / "prepared").iterdir()) == []
    assert prepare(pairs).report.kept == 4000


def test_the_same_again_is_opened_and_not_made(prepare, forbid_tokenizing):
    first = prepare()
    forbid_tokenizing()
    again = prepare()
    assert as_lists(again.rows(range(4))) == as_lists(first.rows(range(4)))
    assert again.report == first.report


def test_tokens_do_not_depend_on_layout_or_earlier_tokenizer_calls(prepare, tokenizer, forbid_tokenizing):
    prepare()
    tokenizer("something", padding="max_length", max_length=9, truncation=True)
    forbid_tokenizing()
    shuffled = corpus_of(PAIRS[::-1]).select(range(len(PAIRS) - 1, -1, -1))
    prepare(shuffled)
    prepare(concatenate_datasets([corpus_of(PAIRS[:3]), corpus_of(PAIRS[3:])]))


@pytest.mark.parametrize(
    "change",
    [
        {"pairs": [*PAIRS[:-1], ("the last one", "der letztE")]},
        {"pairs": [*PAIRS[:-2], ("kur", PAIRS[-2][1]), ("zthe last one", PAIRS[-1][1])]},
        {"max_length": 29},
        {"tokenizer": VanillaTransformerTokenizer.train(["other text"], 262)},
    ],
)
def test_another_text_limit_or_tokenizer_makes_it_anew(prepare, forbid_tokenizing, change):
    prepare()
    forbid_tokenizing()
    with refused(AssertionError, "tokenized again"):
        prepare(**change)


def test_a_write_that_is_cut_off_leaves_what_was_there(prepare, tmp_path, task, streamed, forbid_tokenizing):
    first = prepare()
    task.left, task.error = 2, KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        prepare(streamed(PAIRS * 2, 2))
    assert task.left < 0
    assert sorted(path.name for path in (tmp_path / "prepared").iterdir()) == ["report.json", "tokens.arrow"]
    forbid_tokenizing()
    assert as_lists(prepare().rows(range(4))) == as_lists(first.rows(range(4)))


@pytest.mark.parametrize("file", ["tokens.arrow", "report.json"])
def test_a_file_cut_short_is_made_anew(prepare, tmp_path, file):
    expected = as_lists(prepare().rows(range(4)))
    path = tmp_path / "prepared" / file
    path.write_bytes(path.read_bytes()[:-10])
    assert as_lists(prepare().rows(range(4))) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"kept": 5, "read": 9},  # One more than there are.
        {"kept": "4"},
        {"dropped_empty": -1, "read": 5},
        {"read": 7},
        {"id": None},
        {"text": ...},
        {"settings": ...},
        {"stamp": ...},
        {"dropped_too_long": ...},
    ],
)
def test_a_report_that_cannot_be_true_is_made_anew(prepare, tmp_path, changes):
    expected, path = prepare().report, tmp_path / "prepared" / "report.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in (whole | changes).items() if value is not ...}))
    assert prepare().report == expected


@pytest.mark.parametrize("missing", [("tokens",), ("settings", "text", "tokens", "stamp", "id")])
def test_tokens_of_an_earlier_version_are_rebuilt_or_refused(prepare, tmp_path, missing):
    expected, path = as_lists(prepare().rows(range(4))), tmp_path / "prepared" / "report.json"
    report = {name: value for name, value in json.loads(path.read_text()).items() if name not in missing}
    path.write_text(json.dumps(report))
    with refused(CorpusError, "prepared", "version"):
        StoredCorpus(tmp_path / "prepared")
    assert as_lists(prepare().rows(range(4))) == expected


@pytest.mark.parametrize("text", ['"text"', "4", "null", "[" * 99_999])
def test_a_report_that_is_no_report_is_made_anew(prepare, tmp_path, text):
    expected = prepare().report
    (tmp_path / "prepared" / "report.json").write_text(text)
    assert prepare().report == expected


def test_tokens_of_one_corpus_are_never_taken_with_the_report_of_another(prepare, tmp_path):
    prepare()
    other = tmp_path / "other"
    expected = as_lists(prepare(PAIRS[2:], directory=other).rows(range(2)))
    (other / "tokens.arrow").write_bytes((tmp_path / "prepared" / "tokens.arrow").read_bytes())
    assert as_lists(prepare(PAIRS[2:], directory=other).rows(range(2))) == expected


def test_another_process_gets_the_place_and_not_the_tokens(prepare):
    prepared = prepare([(f"number {index}", "eins zwei drei") for index in range(2000)])
    pickled = pickle.dumps(prepared)
    assert len(pickled) < 1000
    assert as_lists(pickle.loads(pickled).rows([7])) == as_lists(prepared.rows([7]))


def test_the_bar_is_for_terminals_and_can_be_switched_off(prepare, tmp_path, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    prepare(directory=tmp_path / "piped", progress=True)
    assert capsys.readouterr().err == ""
    for name, progress in (("silent", False), ("told", True)):
        terminal = Terminal()
        with standard_streams(stderr=terminal):
            prepare(directory=tmp_path / name, progress=progress)
        assert ("tokenizing" in terminal.getvalue()) == progress
