import bz2
import gzip
import lzma

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refused

from vanilla_transformer.compression import SUFFIXES
from vanilla_transformer.data.text_lines import read_lines
from vanilla_transformer.errors import CorpusError

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}
# Characters at which other readers end a line.
BREAKS = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
lines_of_text = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\n") | st.sampled_from(BREAKS)).filter(
        lambda line: not line.endswith("\r") and not line.startswith("\ufeff")
    ),
    max_size=8,
)


@pytest.mark.parametrize("suffix", ["", *SUFFIXES])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=lines_of_text, end=st.sampled_from(["\n", "\r\n"]))
def test_any_text_without_a_newline_is_one_line(tmp_path, suffix, lines, end):
    path = tmp_path / f"text{suffix}"
    data = "".join(line + end for line in lines).encode()
    path.write_bytes(COMPRESS[suffix](data))
    assert list(read_lines(path)) == lines


def test_a_last_line_needs_no_newline(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one\ntwo")
    assert list(read_lines(path)) == ["one", "two"]


def test_only_the_carriage_return_of_the_line_end_is_dropped(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one\r\r\n\rtwo\r")
    assert list(read_lines(path)) == ["one\r", "\rtwo\r"]


def test_a_byte_order_mark_is_dropped_at_the_start_only(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("\ufeffone\n\ufefftwo\n".encode())
    assert list(read_lines(path)) == ["one", "\ufefftwo"]


def test_an_empty_file_has_no_lines(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"")
    assert list(read_lines(path)) == []


def test_a_dash_is_standard_input(standard_input):
    standard_input("eins\nzw\u00f6lf\n".encode())
    assert list(read_lines("-")) == ["eins", "zw\u00f6lf"]


def test_a_line_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("gut\nsch\u00f6n\n".encode("latin-1"))
    with refused(CorpusError, "latin.txt", "line 2", "UTF-8", "byte 0xf6", "position 4"):
        list(read_lines(path))


def test_a_missing_file_is_named(tmp_path):
    with refused(CorpusError, "absent.txt"):
        list(read_lines(tmp_path / "absent.txt"))


def test_a_directory_is_no_file(tmp_path):
    with refused(CorpusError, "Is a directory"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("damage", [lambda data: b"plain text, and more of it", lambda data: data[: len(data) // 2]])
def test_a_damaged_compressed_file_is_named(tmp_path, suffix, damage):
    path = tmp_path / f"text{suffix}"
    path.write_bytes(damage(COMPRESS[suffix](b"a line\n" * 10_000)))
    with refused(CorpusError, f"text{suffix}"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_parts_of_a_compressed_file_are_one_and_none_is_no_line(tmp_path, suffix):
    path = tmp_path / f"text{suffix}"
    path.write_bytes(b"".join(COMPRESS[suffix](part) for part in (b"one\n", b"", b"two\n")))
    assert list(read_lines(path)) == ["one", "two"]
    path.write_bytes(b"")
    assert list(read_lines(path)) == []


@pytest.mark.parametrize(
    "data",
    [b"plain text", gzip.compress(b"a\n" * 10_000)[:-12], gzip.compress(b"a\n")[:-1]],
    ids=["no gzip", "cut in the text", "cut in the checksum"],
)
def test_a_damaged_gzip_file_is_named(tmp_path, data):
    path = tmp_path / "text.gz"
    path.write_bytes(data)
    with refused(CorpusError, "text.gz"):
        list(read_lines(path))
