"""Synthetic pairs: which lines are translated, which pairs are kept, and a report that counts all the others."""

import json
import tracemalloc
from functools import partial

import pytest
from refusals import refused

from vanilla_transformer.extras.synthetic.pairs import (
    SOURCE,
    TARGET,
    Filters,
    SyntheticError,
    overlap,
    select_lines,
    write_pairs,
)


def words(texts):
    return [len(text.split()) + 1 for text in texts]


@pytest.mark.parametrize(
    ("line", "translation", "share"),
    [
        ("Ein Haus.", "A house.", 0),
        ("Ein Haus", "ein HAUS!", 1),
        ("Paul sieht ein Haus", "Paul sees a house", 1 / 4),
        ("1984 , 12", "1984 , 12", 0),
        ("a b", "a a a b", 1),
        ("a b", "", 0),
    ],
)
def test_overlap_is_the_share_of_words_that_are_those_of_the_line(line, translation, share):
    assert overlap(line, translation) == share


@pytest.mark.parametrize(
    ("line", "translation", "reason"),
    [
        ("ein Haus", "a house", None),
        ("ein Haus", " ", "empty_translation"),
        ("a", "b " * 9, "too_long_translation"),
        ("a", "b c d", None),
        ("a", "b c d e f", "length_ratio"),
        ("a b c d e f", "g", "length_ratio"),
        ("ein Haus", "ein house", None),
        ("ein gutes Haus", "ein gutes house", "copy"),
    ],
)
def test_the_first_filter_that_takes_a_pair_is_its_reason(line, translation, reason):
    filters = Filters(max_length=9, length_ratio=2, copy_overlap=0.5)
    assert filters.reason(line, translation, tuple(words([line, translation]))) == reason


def test_repeated_lines_are_selected_once_with_spaces_for_breaks(tmp_path):
    lines = ["a b", "", "c\u2028d", "  ", "a b", "e " * 5, "c d", "f"]
    counts = select_lines(lambda: lines, tmp_path / "selected", words, 4)
    assert (tmp_path / "selected").read_text("utf-8") == "a b\nc d\nf\n"
    assert counts == {"read": 8, "empty": 2, "duplicate": 2, "too_long": 1, "kept": 3}
    assert [file.name for file in tmp_path.iterdir()] == ["selected"]


def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path):
    texts = iter([["a", "b"], ["a"]])
    with refused(SyntheticError, "changed"):
        select_lines(lambda: next(texts), tmp_path / "selected", words, 4)
    assert not list(tmp_path.iterdir())


def test_memory_does_not_grow_with_the_text(tmp_path):
    peaks = []
    for count in (5_000, 40_000):
        lines = partial(map, "line {}".format, range(count))
        tracemalloc.start()
        select_lines(lines, tmp_path / "selected", words, 9)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # A set of all lines takes five megabytes.
    assert peaks[1] < peaks[0] + 200_000


@pytest.mark.parametrize(("translated", "other"), [(SOURCE, TARGET), (TARGET, SOURCE)])
def test_pairs_stay_aligned_and_the_report_counts_every_line(tmp_path, translated, other):
    lines = [f"line {number}" for number in range(2500)]
    translations = ["" if number % 5 == 0 else f"Zeile {number}" for number in range(2500)]
    report = {"read": 2600, "dropped": {"duplicate": 100}}
    report = write_pairs(lines, translations, tmp_path, words, Filters(), translated=translated, report=report)
    kept = [number for number in range(2500) if number % 5]
    assert (tmp_path / other).read_text().splitlines() == [f"line {number}" for number in kept]
    assert (tmp_path / translated).read_text().splitlines() == [f"Zeile {number}" for number in kept]
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert report["kept"] + sum(report["dropped"].values()) == report["read"]


def test_lines_without_a_translation_are_an_error_and_leave_no_pairs(tmp_path):
    with refused(SyntheticError, "translations", "lines"):
        write_pairs(["a", "b"], ["c"], tmp_path, words, Filters(), translated=SOURCE, report={"dropped": {}})
    assert not list(tmp_path.iterdir())


def test_filters_that_make_no_sense_are_refused():
    for name, value in {"max_length": 0, "length_ratio": float("nan"), "copy_overlap": 2.0}.items():
        with refused(ValueError, name):
            Filters(**{name: value})
