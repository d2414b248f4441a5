import bz2
import gzip
import lzma

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from refusals import refused

from vanilla_transformer.data.text_lines import COMPRESSED, read_lines
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


@pytest.mark.parametrize("suffix", ["", *COMPRESSED])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=lines_of_text, end=st.sampled_from(["\n", "\r\n"]), last=st.sampled_from(["", "no end"]))
def test_any_text_without_a_newline_is_one_line(tmp_path, suffix, lines, end, last):
    path = tmp_path / f"text{suffix}"
    path.write_bytes(COMPRESS[suffix](("".join(line + end for line in lines) + last).encode()))
    assert list(read_lines(path)) == [*lines, last][: len(lines) + bool(last)]


def test_only_what_is_no_text_is_dropped(tmp_path):
    # Of carriage returns only that of the line end, of byte order marks only that at the start.
    (tmp_path / "text").write_bytes("\ufeffone\r\r\n\r\ufefftwo\r".encode())
    assert list(read_lines(tmp_path / "text")) == ["one\r", "\r\ufefftwo\r"]


def test_what_cannot_be_read_is_named(tmp_path):
    (tmp_path / "latin.txt").write_bytes("gut\nsch\u00f6n\n".encode("latin-1"))
    with refused(CorpusError, "latin.txt", "line 2", "UTF-8", "byte 0xf6", "position 4"):
        list(read_lines(tmp_path / "latin.txt"))
    with refused(CorpusError, "absent.txt"):
        list(read_lines(tmp_path / "absent.txt"))
    with refused(CorpusError, "Is a directory"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("kept", [0, 0.5, -4])
def test_a_damaged_compressed_file_is_named(tmp_path, suffix, kept):
    path, data = tmp_path / f"text{suffix}", COMPRESS[suffix](b"a line\n" * 10_000)
    path.write_bytes(data[: int(kept * len(data)) if kept > 0 else kept] if kept else b"plain text, and more of it")
    with refused(CorpusError, f"text{suffix}"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_parts_of_a_compressed_file_are_one(tmp_path, suffix):
    path = tmp_path / f"text{suffix}"
    path.write_bytes(b"".join(COMPRESS[suffix](part) for part in (b"one\n", b"", b"two\n")))
    assert list(read_lines(path)) == ["one", "two"]
