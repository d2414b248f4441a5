"""A corpus in tokens, as training sees it: rows of ids in named columns, read by position."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from vanilla_transformer.data.columns import TextForm
from vanilla_transformer.errors import CorpusError

Ids = NDArray[np.unsignedinteger]
Lengths = NDArray[np.integer]
TOKENS_FILE = "tokens.arrow"
REPORT_FILE = "report.json"
Rows = Mapping[str, Sequence[Ids]]
"""Rows of a corpus by column: each name with the ids of its rows."""
Piece = tuple[Ids, NDArray[np.integer]]
"""Ids of some rows of a column one after the other, and where each row begins and ends in them."""


@dataclass(frozen=True)
class PreparationReport:
    """Counts of a corpus's rows, kept and dropped; a text in several blocks counts as several rows."""

    read: int
    kept: int
    dropped_empty: int
    dropped_too_long: int

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
        lengths: Number of ids in each row, including end tokens, by column in the order of the columns.
    """

    report: PreparationReport
    tokens: str
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


class StoredCorpus(PreparedCorpus):
    """The rows that `prepare_corpus` kept in `directory`, memory-mapped.

    Attributes:
        columns: The pieces of each column.
        starts: Position of the first row of each piece, and the number of all rows.

    Raises:
        CorpusError: The directory holds no tokens, or damaged ones.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            record = json.loads((directory / REPORT_FILE).read_text(encoding="utf-8"))
            self.report, self.fingerprint = PreparationReport(**record["report"]), str(record["fingerprint"])
            table = Dataset.from_file(str(directory / TOKENS_FILE)).data
            if not len(table) == self.report.kept > 0:
                raise ValueError(f"{len(table)} rows")
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise CorpusError(f"{directory} holds no tokenized corpus that can be read: prepare it again") from error
        self.columns = {
            name: [(piece.values.to_numpy(), piece.offsets.to_numpy()) for piece in table.column(name).chunks]
            for name in table.column_names
        }
        self.starts = np.cumsum([0, *map(len, table.column(0).chunks)])
        self.lengths = {
            name: np.concatenate([np.diff(bounds) for _, bounds in pieces]) for name, pieces in self.columns.items()
        }
        self.tokens = self._hash()

    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> Rows:
        """Return the ids of the rows at `indices`, by column, as views of the file."""
        return rows_at(self.columns, self.starts, indices)

    def _hash(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for name, pieces in self.columns.items():
            for ids, bounds in pieces:
                digest.update(ids[bounds[0] : bounds[-1]].data)
            digest.update(self.lengths[name].data)
        return digest.hexdigest()


def rows_at(
    columns: Mapping[str, Sequence[Piece]], starts: NDArray[np.int64], indices: Sequence[int] | NDArray[np.integer]
) -> Rows:
    """Return rows by their positions in columns of several pieces, each of which begins at one of `starts`."""
    positions = np.asarray(indices, dtype=np.int64)
    numbers = np.searchsorted(starts, positions, side="right") - 1
    places = list(zip(numbers.tolist(), (positions - starts[numbers]).tolist(), strict=True))
    return {
        name: [ids[bounds[place] : bounds[place + 1]] for number, place in places for ids, bounds in [pieces[number]]]
        for name, pieces in columns.items()
    }
