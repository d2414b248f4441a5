"""Parts of an input: each line in one of them, in order, found from sizes alone."""

import gzip

import pyarrow
import pyarrow.parquet
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from vanilla_transformer.data.text_lines import CorpusError, read_lines
from vanilla_transformer.extras.many_machines.parts import PartsError, cut, identity, read_part


def parts(paths, tasks, column=None):
    """The lines of each part."""
    return [list(read_part(part, column)) for part in cut([str(path) for path in paths], tasks)]


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(alphabet="aä\n\r\u2028", max_size=30), min_size=1, max_size=3),
    tasks=st.integers(1, 9),
)
def test_each_line_is_in_one_part_in_order(tmp_path_factory, texts, tasks):
    directory = tmp_path_factory.mktemp("text")
    paths = [directory / str(number) for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text.encode())
    together = [line for part in parts(paths, tasks) for line in part]
    assert together == [line for path in paths for line in read_lines(path)]


def test_parts_are_of_about_equal_size(tmp_path):
    (tmp_path / "in").write_text("".join(f"{number:07}\n" for number in range(1000)))
    sizes = [len(part) for part in parts([tmp_path / "in"], 8)]
    assert sum(sizes) == 1000 and max(sizes) - min(sizes) <= 1


def test_byte_order_mark_is_skipped_and_invalid_utf8_located(tmp_path):
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbfa\r\nb\nc\xff\n")
    assert list(read_part(cut([str(tmp_path / "in")], 4)[0])) == ["a"]
    with refused(CorpusError, "byte 10", "UTF-8"):
        parts([tmp_path / "in"], 2)


def write_gz(path, lines):
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
    return path


def test_gz_files_go_whole_and_are_not_cut(tmp_path):
    paths = [write_gz(tmp_path / f"{number}.gz", [f"{number}"] * (10 + number)) for number in range(3)]
    assert [len(part) for part in parts(paths, 3)] == [10, 11, 12]
    assert [len(part) for part in parts(paths, 2)] in ([10, 23], [21, 12])
    with refused(PartsError, "8 tasks", "gz", "--tasks"):
        parts(paths, 8)
    (tmp_path / "plain").write_text("x\n")
    with refused(PartsError, "0.gz"):
        parts([paths[0], tmp_path / "plain"], 5)


def test_parquet_is_cut_between_row_groups_and_has_one_column(tmp_path):
    table = pyarrow.table({"number": list(range(10)), "en": [f"line {n}" if n else None for n in range(10)]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", row_group_size=3)
    expected = [["", "line 1", "line 2", "line 3", "line 4", "line 5"], ["line 6", "line 7", "line 8", "line 9"]]
    assert parts([tmp_path / "t.parquet"], 2) == expected
    with refused(PartsError, "9 tasks", "row group"):
        parts([tmp_path / "t.parquet"], 9)
    pyarrow.parquet.write_table(table.append_column("de", table["en"]), tmp_path / "two.parquet")
    assert parts([tmp_path / "two.parquet"], 1, "de") == [sum(expected, [])]
    with refused(PartsError, "--source-column", "en, de"):
        parts([tmp_path / "two.parquet"], 1)
    with refused(PartsError, "'fr'"):
        parts([tmp_path / "two.parquet"], 1, "fr")
    (tmp_path / "broken.parquet").write_text("x")
    with refused(CorpusError, "Parquet"):
        parts([tmp_path / "broken.parquet"], 1)


def test_inputs_are_told_apart_and_missing_ones_named(tmp_path):
    for name, text in {"a": "x\n" * 9, "b": "y\n" * 9, "c": "x\n" * 9}.items():
        (tmp_path / name).write_text(text)
    a, b, c = (identity(str(tmp_path / name)) for name in "abc")
    assert a == c != b
    with refused(CorpusError, "none"):
        parts([tmp_path / "none"], 2)
