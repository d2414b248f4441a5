"""Corpora in parts: each pair is in one of them, in order, whatever the corpus lies in."""

import gzip
import json
import random

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from vanilla_transformer.data.sources import CorpusSpec, parse_corpora
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.extras.many_machines.corpus_parts import (
    CorpusPiece,
    align,
    corpus_identity,
    cut_corpora,
    read_pieces,
)
from vanilla_transformer.extras.many_machines.parts import PartsError


def pairs_of(corpora, tasks, cache):
    """The pairs of each part."""
    return [
        [(row["source"], row["target"]) for table in read_pieces(corpora, part, cache) for row in table.to_pylist()]
        for part in cut_corpora(corpora, tasks, cache)
    ]


def lines_of(data):
    """Returns the lines of a file."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30),
    ends=st.tuples(st.booleans(), st.booleans()),
    tasks=st.integers(1, 9),
)
def test_each_pair_of_aligned_files_is_in_one_part_in_order(tmp_path_factory, lengths, ends, tasks):
    directory = tmp_path_factory.mktemp("text")
    sides = []
    for side, ended in enumerate(ends):
        lines = [f"{number}{'ä' * counts[side]}" for number, counts in enumerate(lengths)]
        (directory / str(side)).write_text("\n".join(lines) + "\n" * (ended and bool(lines)))
        sides.append(lines)
    corpora = [CorpusSpec((str(directory / "0"), str(directory / "1")))]
    parts = pairs_of(corpora, tasks, directory)
    assert [pair for part in parts for pair in part] == list(zip(*sides, strict=True))


@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_files_of_many_blocks_are_cut_as_well(tmp_path, tasks):
    """Files are read four mebibytes at a time, and no end of these is an end of a line."""
    draw, sides = random.Random(0), []
    for side in "ab":
        sides.append([f"{number}{side * draw.randint(0, 200_000)}" for number in range(100)])
        (tmp_path / side).write_text("".join(f"{line}\n" for line in sides[-1]))
    parts = pairs_of([CorpusSpec((str(tmp_path / "a"), str(tmp_path / "b")))], tasks, tmp_path)
    assert [pair for part in parts for pair in part] == list(zip(*sides, strict=True))


def test_parts_are_of_about_equal_size_and_know_how_many_they_hold(tmp_path):
    for side in "ab":
        (tmp_path / side).write_text("".join(f"{side}{number:07}\n" for number in range(1000)))
    corpora = [CorpusSpec((str(tmp_path / "a"), str(tmp_path / "b")))]
    parts = cut_corpora(corpora, 8, tmp_path)
    assert [piece.rows for (piece,) in parts] == [125] * 8
    kept = json.loads(json.dumps([vars(piece) for (piece,) in parts]))
    assert [CorpusPiece.from_json(values) for values in kept] == [piece for (piece,) in parts]


def test_unaligned_files_are_refused_with_their_line_counts(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3")
    (tmp_path / "b").write_text("1\n2\n")
    with refused(CorpusError, "a", "3 lines", "b", "2"):
        align([str(tmp_path / "a"), str(tmp_path / "b")], [0, 2])


def test_a_text_that_has_changed_since_it_was_cut_is_refused(tmp_path):
    for side in "ab":
        (tmp_path / side).write_text("1\n2\n3\n4\n")
    corpora = [CorpusSpec((str(tmp_path / "a"), str(tmp_path / "b")))]
    before = corpus_identity(corpora[0])
    parts = cut_corpora(corpora, 2, tmp_path)
    for side in "ab":
        (tmp_path / side).write_text("1234\n5\n6\n")
    with refused(CorpusError, "changed"):
        list(read_pieces(corpora, parts[0], tmp_path))
    assert corpus_identity(corpora[0]) != before


def test_several_corpora_of_all_kinds_follow_each_other(tmp_path):
    pairs = [(f"s{number}", f"t{number}") for number in range(24)]
    for side in (0, 1):
        (tmp_path / f"lines{side}").write_text("".join(f"{pair[side]}\n" for pair in pairs[:8]))
    sources, targets = zip(*pairs[8:16], strict=True)
    table = pyarrow.table({"number": range(8), "en": sources, "de": targets})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    with gzip.open(tmp_path / "t.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs[16:])
    words = [*(str(tmp_path / f"lines{side}") for side in (0, 1)), "+", str(tmp_path / "t.parquet")]
    corpora = parse_corpora([*words, "source_column=en", "target_column=de", "+", str(tmp_path / "t.jsonl.gz")])
    for tasks in (1, 3):
        parts = pairs_of(corpora, tasks, tmp_path)
        assert [pair for part in parts for pair in part] == pairs and len(parts) == tasks
    with refused(PartsError, "40 tasks"):
        cut_corpora(corpora, 40, tmp_path)
    with refused(PartsError, "2 tasks", "jsonl.gz"):
        cut_corpora(corpora[2:], 2, tmp_path)


def test_a_dataset_is_cut_by_rows(tmp_path):
    corpora = parse_corpora(["cmudict:dev"])
    whole, parts = pairs_of(corpora, 1, tmp_path), pairs_of(corpora, 7, tmp_path)
    assert [pair for part in parts for pair in part] == whole[0]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert corpus_identity(corpora[0]) == ["cmudict:dev", "a dataset"]
