"""A corpus in tokens, as training sees it: rows of ids in named columns, read by position, kept in Arrow files."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vanilla_transformer.data.columns import PAIRS, TextForm
from vanilla_transformer.data.row_hashes import RowHash

Ids = NDArray[np.unsignedinteger]
Lengths = NDArray[np.integer]
Rows = Mapping[str, Sequence[Ids]]
"""Rows of a corpus by column: each name with the ids of its rows."""


@dataclass(frozen=True)
class PreparationReport:
    """Counts of a corpus's rows, kept and dropped; a text in several blocks counts as several rows."""

    read: int
    kept: int
    dropped_empty: int
    dropped_too_long: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "PreparationReport":
        """Return the counts in a record that has others beside them; KeyError if one is missing."""
        return cls(**{name: record[name] for name in cls.__dataclass_fields__})

    @property
    def is_sound(self) -> bool:
        """Tells whether the values are valid counts, with each row in exactly one of them."""
        counts = self.kept, self.dropped_empty, self.dropped_too_long
        return all(type(count) is int and count >= 0 for count in counts) and self.read == sum(counts)

    def __str__(self) -> str:
        return self.describe(PAIRS)

    def describe(self, form: TextForm) -> str:
        """Return the counts in words, with the form's name for rows."""
        dropped = {form.empty: self.dropped_empty, "that are too long": self.dropped_too_long}
        reasons = [f"{count:,} {reason}" for reason, count in dropped.items() if count]
        return f"{self.kept:,} of {self.read:,} {form.unit}" + (
            f", without {' and '.join(reasons)}" if reasons else ""
        )


class PreparedCorpus(ABC):
    """Rows of token ids in named columns, by position.

    Attributes:
        report: Numbers of rows kept and dropped.
        tokens: A hash of all ids in their order: it changes whenever a model would learn from other data.
        texts: A hash of the underlying text, for each corpus of a mixture.
        lengths: Number of ids in each row, including end tokens, by column in the order of the columns.
    """

    report: PreparationReport
    tokens: str
    texts: tuple[str, ...]
    lengths: Mapping[str, Lengths]

    def __len__(self) -> int:
        return len(next(iter(self.lengths.values())))

    @property
    def token_counts(self) -> tuple[int, ...]:
        """The ids of all rows, for each column."""
        return tuple(int(lengths.sum(dtype=np.int64)) for lengths in self.lengths.values())

    @abstractmethod
    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> Rows:
        """Return the ids of the rows at `indices`, by column."""

    def of_epoch(self, epoch: int) -> "PreparedCorpus":
        """Return the rows of an epoch: always these, except in a mixture that draws some of them."""
        return self


class _Column(NamedTuple):
    """One column of adjacent rows: their ids one after the other, and where each row begins and ends."""

    ids: Ids
    bounds: NDArray[np.int32]

    @classmethod
    def from_arrow(cls, column: pa.ListArray) -> "_Column":
        return cls(column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy(zero_copy_only=True))

    def row(self, offset: int) -> Ids:
        return self.ids[self.bounds[offset] : self.bounds[offset + 1]]

    def hashed(self) -> tuple[memoryview, NDArray[np.int64]]:
        return self.ids.data, np.diff(self.bounds).astype(np.int64)


class TokenFile:
    """Rows of ids in named columns, in an Arrow file that is memory-mapped.

    Raises:
        ValueError: The file is damaged.
    """

    def __init__(self, path: Path) -> None:
        file = pa.memory_map(str(path))
        reader = pa.ipc.open_file(file)
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        _refuse_buffers_outside(file, batches)
        self._columns = {
            name: [_Column.from_arrow(batch.column(name)) for batch in batches] for name in reader.schema.names
        }
        self._ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)
        self.id = (reader.schema.metadata or {}).get(b"id", b"").decode()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def lengths(self) -> dict[str, NDArray[np.int32]]:
        """Return the number of ids in each row, by column."""
        empty = np.zeros(0, dtype=np.int32)
        return {
            name: np.concatenate([empty, *(np.diff(part.bounds) for part in parts)])
            for name, parts in self._columns.items()
        }

    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> dict[str, list[Ids]]:
        """Return the ids of the rows at `indices`, by column, as views of the file."""
        positions = np.asarray(indices, dtype=np.int64)
        batches = np.searchsorted(self._ends, positions, side="right")
        offsets = positions - np.concatenate(([0], self._ends))[batches]
        places = list(zip(batches.tolist(), offsets.tolist(), strict=True))
        return {name: [parts[batch].row(offset) for batch, offset in places] for name, parts in self._columns.items()}


def _refuse_buffers_outside(file: pa.MemoryMappedFile, batches: Iterable[pa.RecordBatch]) -> None:
    """Raises ValueError if memory beyond the end of the file would be read, which would kill the process."""
    file.seek(0)
    whole = file.read_buffer()
    for batch in batches:
        batch.validate()
        for buffer in chain.from_iterable(column.buffers() for column in batch.columns):
            if buffer is not None and not 0 <= buffer.address - whole.address <= whole.size - buffer.size:
                raise ValueError("ids beyond the end of the file")


def rows_of_several(parts: Sequence[PreparedCorpus], starts: NDArray[np.int64], positions: NDArray[np.int64]) -> Rows:
    """Return rows of several corpora by their positions overall, where each corpus begins at one of `starts`."""
    owners = np.searchsorted(starts, positions, side="right") - 1
    found: dict[str, list[Ids]] = {}
    for number in np.unique(owners).tolist():
        places = np.flatnonzero(owners == number)
        for name, column in parts[number].rows(positions[places] - starts[number]).items():
            all_rows = found.setdefault(name, [None] * len(positions))  # type: ignore[list-item]
            for place, ids in zip(places.tolist(), column, strict=True):
                all_rows[place] = ids
    return found


@contextmanager
def token_writer(
    path: Path, columns: Sequence[str], ids: int, name: str, tokens: RowHash
) -> Iterator[Callable[[Sequence[tuple[Sequence[int], ...]]], int]]:
    """Open a file for a function that writes rows of ids to it, adds them to the hash and returns their number.

    Args:
        path: The file to write, for `TokenFile` to read.
        columns: Names of the columns.
        ids: The number of ids: all are below it.
        name: The id stored in the file.
        tokens: A hash.
    """
    # A half or a quarter of the size of 64-bit ids.
    kind = pa.list_(pa.uint16() if ids <= 1 << 16 else pa.uint32())
    schema = pa.schema([(column, kind) for column in columns], metadata={"id": name})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:

        def write(rows: Sequence[tuple[Sequence[int], ...]]) -> int:
            if rows:
                lists = [_id_lists(column, kind) for column in zip(*rows, strict=True)]
                writer.write_batch(pa.record_batch(lists, schema))
                tokens.add(_Column.from_arrow(column).hashed() for column in lists)
            return len(rows)

        yield write


def _id_lists(rows: Sequence[Sequence[int]], kind: pa.ListType) -> pa.ListArray:
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    ids = np.fromiter(chain.from_iterable(rows), kind.value_type.to_pandas_dtype(), count=offsets[-1])
    return pa.ListArray.from_arrays(offsets, ids, type=kind)
