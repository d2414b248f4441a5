"""Compressed text files, recognised by their suffix: read and written as if they were plain."""

import bz2
import gzip
import io
import lzma
import os
import zlib
from pathlib import PurePath
from typing import IO, Any, cast

SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
# Errors of readers, besides OSError, for a file that is damaged or does not match its suffix.
DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Returns the suffix of a compressed file, and an empty string for a plain one."""
    suffix = PurePath(path).suffix
    return suffix if suffix in SUFFIXES else ""


def without_suffix(path: str) -> str:
    """Returns the name that a file would have if it were plain."""
    return path.removesuffix(suffix_of(path))


def open_bytes(path: str | os.PathLike[str], mode: str = "rb", suffix: str | None = None) -> IO[bytes]:
    """Opens a file, plain or compressed, to read bytes (`rb`) or to write them (`wb`; plain ones also `ab`).

    Args:
        suffix: The compression, if the name does not tell.
    """
    suffix = suffix_of(path) if suffix is None else suffix
    if mode == "rb" and suffix and os.path.isfile(path) and not os.path.getsize(path):
        return io.BytesIO()  # Like gzip, and unlike some others.
    if suffix == ".zst":
        import pyarrow as pa

        plain = pa.OSFile(os.fspath(path), mode)
        if mode == "wb":
            return cast(IO[bytes], io.BufferedWriter(cast(Any, pa.CompressedOutputStream(plain, "zstd"))))
        return cast(IO[bytes], io.BufferedReader(cast(Any, pa.CompressedInputStream(plain, "zstd"))))
    opened: Any = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}.get(suffix, open)
    return cast(IO[bytes], opened(path, mode))
