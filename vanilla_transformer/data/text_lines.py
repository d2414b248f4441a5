"""Lines of UTF-8 text, exactly as they are in a file, plain or compressed as its suffix says."""

import bz2
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import PurePath
from typing import IO, Any

from vanilla_transformer.errors import CorpusError

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# Errors of readers, besides OSError, for a file that is damaged or does not match its suffix.
DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
# In characters: a tokenizer takes long for a piece of millions.
MAX_PIECE_LENGTH = 1 << 14
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# How files with markup begin: XML with TMX and XLIFF, HTML, and the SGML test sets of WMT.
_MARKUP = re.compile(r"\s*<(\?xml|!doctype|html|tmx|xliff|mteval|srcset|refset|tstset)\b", re.IGNORECASE)


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    r"""Yields the lines of a UTF-8 file, plain or compressed, without their line ends; ``"-"`` is standard input.

    Only ``\n`` and ``\r\n`` end a line. Any other character that Unicode calls a line break (a lone ``\r``, a form
    feed, U+0085, U+2028) is text, so that the two files of a corpus stay aligned. A leading byte order mark is
    dropped.
    """
    for line in decoded_lines(path):
        if line.endswith("\n"):
            line = line[:-2] if line.endswith("\r\n") else line[:-1]
        yield line


def read_pieces(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields all characters of a UTF-8 file in pieces: lines with their ends, and parts of very long ones.

    An empty piece comes first, to mark the start of a text; an empty file gives no pieces.
    """
    for number, line in enumerate(decoded_lines(path)):
        if not number:
            yield ""
        for start in range(0, len(line), MAX_PIECE_LENGTH):
            yield line[start : start + MAX_PIECE_LENGTH]


def decoded_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the lines of a UTF-8 file with their line ends; see `read_lines`."""
    name, number = "standard input" if path == "-" else os.fspath(path), 0
    try:
        # Not sys.stdin: Python closes it at exit, and aborts if a thread is still waiting for a line in its buffer.
        own = open(sys.stdin.fileno(), "rb", closefd=False) if path == "-" else None  # noqa: SIM115
        with own or open_bytes(path) as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    check_first_line(name, line)
                yield (line if number > 1 else line.removeprefix(BYTE_ORDER_MARK)).decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at position {error.start + 1}"
        raise CorpusError(f"{name}, line {number}: not UTF-8 ({byte}); convert the file to UTF-8 first") from error
    except (*DAMAGE, OSError) as error:
        raise CorpusError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def check_first_line(name: str, line: bytes) -> None:
    """Raises CorpusError if a file is a pointer of Git LFS, or if its lines end as on the first Macs."""
    if line.startswith(_LFS_POINTER):
        raise CorpusError(f"{name} is a pointer of Git LFS, not the file itself: run `git lfs pull`")
    if line.endswith(b"\r") and b"\r" in line.rstrip(b"\r"):
        raise CorpusError(f"{name} ends its lines with \\r, as old Macs did: convert the line ends to \\n")


def is_markup(first_line: str) -> bool:
    """Returns True if a file that begins with this line contains XML, HTML or SGML rather than lines of text."""
    return _MARKUP.match(first_line) is not None


def words_of(text: str) -> list[str]:
    """Returns what stands between spaces and tabs; other white space, as in 10\u2009000, is part of a word."""
    return re.findall(r"[^ \t]+", text)


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Returns the suffix of a compressed file, and an empty string for a plain one."""
    suffix = PurePath(path).suffix
    return suffix if suffix in COMPRESSED else ""


def without_suffix(path: str) -> str:
    """Returns the name that a file would have if it were plain."""
    return path.removesuffix(suffix_of(path))


def open_bytes(path: str | os.PathLike[str], mode: str = "rb") -> IO[bytes]:
    """Opens a file, plain or compressed, to read bytes (`rb`) or to write them (`wb`; plain ones also `ab`)."""
    suffix = suffix_of(path)
    if suffix == ".zst":
        import pyarrow as pa

        plain = pa.OSFile(os.fspath(path), mode)
        if mode == "wb":
            return io.BufferedWriter(pa.CompressedOutputStream(plain, "zstd"))
        return io.BufferedReader(pa.CompressedInputStream(plain, "zstd"))
    opener: Any = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}.get(suffix, open)
    file: IO[bytes] = opener(path, mode)
    return file
