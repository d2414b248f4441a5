"""A corpus in tokens, as training sees it: rows of ids in named columns, read by position."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vanilla_transformer.data.columns import PAIRS, TextForm

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


@dataclass(frozen=True)
class EpochPart:
    """Rows of an epoch that are planned together.

    Attributes:
        number: Its position among the parts of the epoch.
        corpus: The rows.
        before: Share of the epoch's rows in the parts before it; `share` is its own.
    """

    number: int
    corpus: "PreparedCorpus"
    before: float = 0.0
    share: float = 1.0


class TrainingCorpus(ABC):
    """Rows of token ids to learn from, in one or several parts per epoch.

    Attributes:
        report: Numbers of rows kept and dropped.
        tokens: A hash of all ids in their order: it changes whenever a model would learn from other data.
        texts: A hash of the underlying text, for each corpus of a mixture.
    """

    report: PreparationReport
    tokens: str
    texts: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows in an epoch."""

    @property
    @abstractmethod
    def token_counts(self) -> tuple[int, ...]:
        """The ids in an epoch, for each column."""

    @abstractmethod
    def epoch_parts(self, epoch: int, first: int = 0) -> Iterator[EpochPart]:
        """Yield the parts of an epoch in order, starting with the part `first`."""

    @abstractmethod
    def all_lengths(self) -> Iterator[tuple[Lengths, ...]]:
        """Yield the lengths of all rows by column, some rows at a time."""


class PreparedCorpus(TrainingCorpus):
    """Rows of token ids in named columns, by position.

    Attributes:
        lengths: Number of ids in each row, including end tokens, by column in the order of the columns.
    """

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

    def row_numbers(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers that identify the rows at `indices`, whichever part of a corpus they are read from."""
        return indices

    def epoch_parts(self, epoch: int, first: int = 0) -> Iterator[EpochPart]:
        """Yield all rows as one part."""
        if first == 0:
            yield EpochPart(0, self.of_epoch(epoch))

    def all_lengths(self) -> Iterator[tuple[Lengths, ...]]:
        """Yield the lengths of all rows at once."""
        yield tuple(self.lengths.values())
