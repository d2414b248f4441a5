"""Files of ids: rows of a corpus in Arrow, memory-mapped."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vanilla_transformer.data.row_hashes import RowHash
from vanilla_transformer.data.token_corpus import Ids, PreparedCorpus, Rows


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
        self.names = tuple(reader.schema.names)
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

    def hexdigest(self) -> str:
        """Return the hash that `write_token_file` computed of these ids, by reading all of them."""
        tokens = RowHash()
        for batch in zip(*self._columns.values(), strict=True):
            tokens.add(column.hashed() for column in batch)
        return tokens.hexdigest()

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


def rows_of_several(
    parts: Sequence["PreparedCorpus | TokenFile"], starts: NDArray[np.int64], positions: NDArray[np.int64]
) -> Rows:
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
