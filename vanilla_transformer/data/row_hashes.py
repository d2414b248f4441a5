"""Hashes of rows, of text or of ids, which do not depend on the portions that these arrive in."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_DIGEST = 16


class RowHash:
    """A hash of rows of sequences."""

    def __init__(self) -> None:
        self._columns: list[Any] = []
        self._lengths = hashlib.blake2b(digest_size=_DIGEST)

    def add(self, columns: Iterable[tuple[memoryview, NDArray[np.int64]]]) -> None:
        """Add rows, given for each column as the contents of its sequences and the length of each."""
        contents, lengths = zip(*columns, strict=True)
        self._columns = self._columns or [hashlib.blake2b(digest_size=_DIGEST) for _ in contents]
        for hashed, content in zip(self._columns, contents, strict=True):
            hashed.update(content)
        self._lengths.update(np.stack(lengths, axis=1).data)

    def hexdigest(self) -> str:
        """Return the hash of all rows so far: the hashes of the columns, then that of the lengths."""
        return "".join(part.hexdigest() for part in (*self._columns, self._lengths))


class TextHash(RowHash):
    """A hash of text in tables."""

    def update(self, table: pa.Table) -> None:
        """Add the rows of a table."""
        sides = []
        for name in table.column_names:
            column = pa.concat_arrays(table.column(name).cast(pa.large_string()).chunks)
            _, offsets, text = column.buffers()
            bounds = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
            sides.append((memoryview(text or b"")[bounds[0] : bounds[-1]], np.diff(bounds)))
        self.add(sides)


def has_equal_sides(text: str) -> bool:
    """Tell by the hash of a two-column text whether its columns are identical."""
    *columns, _ = [text[start : start + 2 * _DIGEST] for start in range(0, len(text), 2 * _DIGEST)]
    return len(columns) == 2 and columns[0] == columns[1]
