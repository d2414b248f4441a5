"""Corpora cut into parts that can be read independently: aligned files at the same lines, Parquet at row groups."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Features

from vanilla_transformer.compression import suffix_of
from vanilla_transformer.data.columns import PAIRS, TextForm
from vanilla_transformer.data.corpus import open_corpus, read_corpus
from vanilla_transformer.data.sources import CorpusSpec, locate, table_suffix
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.data.text_streams import class_names, columns_of, row_tables, stream_of, text_columns
from vanilla_transformer.extras.many_machines.filesystems import filesystem_of
from vanilla_transformer.extras.many_machines.parts import (
    PartsError,
    Piece,
    cannot_be_cut,
    divide,
    identity,
    open_parquet,
    read_part,
    wholes_of,
)

_BLOCK = 1 << 22


@dataclass(frozen=True)
class CorpusPiece:
    """A stretch of one of several corpora.

    Attributes:
        corpus: The number of the corpus.
        kind: ``lines`` of two aligned files, ``parquet``, ``rows`` of a dataset, or ``whole``.
        bounds: Start and end: bytes in each of two files, row groups, or rows.
        rows: The number of rows, if known before reading.
    """

    corpus: int
    kind: str
    bounds: tuple[tuple[int, int], ...] = ()
    rows: int | None = None

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "CorpusPiece":
        """Restores a piece from JSON data."""
        return cls(**{**values, "bounds": tuple(map(tuple, values["bounds"]))})


def cut_corpora(
    corpora: Sequence[CorpusSpec], tasks: int, cache: Path, form: TextForm = PAIRS
) -> list[list[CorpusPiece]]:
    """Returns the pieces of each of `tasks` parts of about equal size, in order.

    Two aligned files are both read once, to find the places of the lines at which they are cut.

    Raises:
        CorpusError: The corpora cannot be read.
        PartsError: A corpus that can only be read from its start would have to be cut.
    """
    wholes = [whole for number, corpus in enumerate(corpora) for whole in _wholes(number, corpus, cache, form)]
    divisible = [piece.kind in ("lines", "rows") for piece, _ in wholes]

    def refusal(index: int) -> str:
        piece = wholes[index][0]
        corpus = corpora[piece.corpus]
        if piece.kind == "parquet":
            return cannot_be_cut(Piece(corpus.parts[0], *piece.bounds[0], "parquet"), tasks)
        return (
            f"For {tasks} tasks {corpus} would have to be cut, but it can only be read from its start: give "
            "fewer --tasks, or the text as Parquet or as two uncompressed line-aligned files"
        )

    parts: list[list[CorpusPiece]] = [[] for _ in range(tasks)]
    stretches: dict[int, list[tuple[int, int, int]]] = {
        index: [] for index, (piece, _) in enumerate(wholes) if piece.kind == "lines"
    }
    for number, part in enumerate(divide([size for _, size in wholes], divisible, tasks, refusal)):
        for index, start, end in part:
            piece = wholes[index][0]
            if piece.kind == "lines":
                stretches[index].append((number, start, end))
            elif piece.kind == "rows":
                parts[number].append(CorpusPiece(piece.corpus, "rows", ((start, end),), end - start))
            else:
                parts[number].append(piece)
    for index, cuts in stretches.items():
        piece = wholes[index][0]
        places = align(corpora[piece.corpus].parts, [start for _, start, _ in cuts])
        for (number, _, _), (here, there) in zip(cuts, pairwise(places), strict=True):
            bounds = tuple(zip(here[1:], there[1:], strict=True))
            parts[number].append(CorpusPiece(piece.corpus, "lines", bounds, there[0] - here[0]))
    return [sorted(part, key=lambda piece: (piece.corpus, piece.bounds)) for part in parts]


def _wholes(number: int, corpus: CorpusSpec, cache: Path, form: TextForm) -> Iterator[tuple[CorpusPiece, int]]:
    """Yields the uncut pieces of a corpus, with the size of each."""
    first = corpus.parts[0]
    wanted = corpus.wanted(form)
    plain = not any(suffix_of(path) or table_suffix(path) for path in corpus.parts)
    if form.packed:
        locate(corpus, form)
        yield CorpusPiece(number, "whole"), sum(size for path in corpus.parts for _, size in _sizes(path))
    elif plain and (len(corpus.parts) == 2 if form.parallel else len(form.columns) == 1 and first.endswith(".txt")):
        if any(wanted):
            raise CorpusError(f"{corpus} has no named columns: leave the names out")
        (_, size), *_ = [whole for path in corpus.parts for whole in wholes_of(path)]
        yield CorpusPiece(number, "lines"), size
    elif len(corpus.parts) == 1 and first.endswith(".parquet") and not (form.tagged or corpus.streaming):
        metadata = open_parquet(first).metadata
        for piece, size in wholes_of(first):
            rows = metadata.row_group(piece.start).num_rows
            yield CorpusPiece(number, "parquet", ((piece.start, piece.end),), rows), size
    elif locate(corpus, form).kind in ("dataset", "text") and not corpus.streaming:
        rows = len(read_corpus(corpus, form=form, cache_dir=cache))
        yield CorpusPiece(number, "rows", ((0, rows),), rows), rows
    else:
        yield CorpusPiece(number, "whole"), sum(size for path in corpus.parts for _, size in _sizes(path))


def _sizes(path: str) -> Iterator[tuple[Piece, int]]:
    try:
        yield from wholes_of(path)
    except CorpusError:
        yield Piece(path, 0, 0, "plain"), 1  # A stream of unknown size.


def read_pieces(
    corpora: Sequence[CorpusSpec], pieces: Iterable[CorpusPiece], cache: Path, form: TextForm = PAIRS
) -> Iterator[pa.Table]:
    """Yields the text of some pieces, in tables.

    Raises:
        CorpusError: A piece cannot be read, or its length has changed since the corpus was cut.
    """
    for piece in pieces:
        read, corpus = 0, corpora[piece.corpus]
        for table in _tables(corpus, piece, cache, form):
            read += table.num_rows
            yield table
        if piece.rows not in (None, read):
            raise CorpusError(f"{corpus} has changed since it was cut into parts: restore it, or prepare it again")


def merged(pieces: Iterable[CorpusPiece]) -> Iterator[CorpusPiece]:
    """Merges adjacent pieces into as few as possible."""
    last: CorpusPiece | None = None
    for piece in pieces:
        starts = [start for start, _ in piece.bounds]
        if last is None:
            last = piece
        elif (last.corpus, last.kind, _ends(last)) == (piece.corpus, piece.kind, starts):
            bounds = tuple((start, end) for (start, _), (_, end) in zip(last.bounds, piece.bounds, strict=True))
            last = CorpusPiece(last.corpus, last.kind, bounds, (last.rows or 0) + (piece.rows or 0))
        else:
            yield last
            last = piece
    if last is not None:
        yield last


def _ends(piece: CorpusPiece) -> list[int]:
    return [end for _, end in piece.bounds]


def _tables(corpus: CorpusSpec, piece: CorpusPiece, cache: Path, form: TextForm) -> Iterator[pa.Table]:
    if piece.kind == "lines":
        sides = [
            read_part([Piece(path, start, end, "plain")])
            for path, (start, end) in zip(corpus.parts, piece.bounds, strict=True)
        ]
        yield from row_tables(zip(*sides, strict=True), form)
    elif piece.kind == "parquet":
        parquet, name = open_parquet(corpus.parts[0]), str(corpus)
        features = Features.from_arrow_schema(parquet.schema_arrow)
        columns = columns_of(features, corpus.wanted(form), name, form)
        for table in (parquet.read_row_group(group) for group in range(*piece.bounds[0])):
            yield text_columns(table, columns, name, form, class_names(features))
    elif piece.kind == "rows":
        rows = read_corpus(corpus, form=form, cache_dir=cache).select(range(*piece.bounds[0]))
        yield from stream_of(rows, form=form).tables()
    else:
        yield from open_corpus(corpus, form=form, cache_dir=cache).tables()


def corpus_identity(corpus: CorpusSpec) -> list[str]:
    """Returns a fingerprint of a corpus without reading all of it; for a dataset it is only the name."""
    return [*corpus.to_words(), *(_identity(path) for path in corpus.parts)]


def _identity(path: str) -> str:
    try:
        next(wholes_of(path), None)
    except (CorpusError, PartsError):
        return "a dataset"
    return identity(path)


def align(paths: Sequence[str], starts: Sequence[int]) -> list[tuple[int, ...]]:
    """Finds the lines at which aligned files are cut: for each its number, counted from 0, and its place in each file.

    The last entry is the end of all files.

    Args:
        starts: Places in the first file, in order: each cut is before the first line that begins there or later.

    Raises:
        CorpusError: The files differ in their number of lines.
    """
    cuts = [(0, 0) for start in starts if start == 0]
    lines, end, last = 0, 0, b"\n"
    for block, breaks in _line_breaks(paths[0]):
        stop = bisect_right(starts, int(breaks[-1]) + 1) if len(breaks) else 0
        before = np.searchsorted(breaks, np.array(starts[len(cuts) : stop], dtype=np.int64) - 1)
        cuts += [(lines + index + 1, int(breaks[index]) + 1) for index in before.tolist()]
        lines, end, last = lines + len(breaks), end + len(block), block
    lines += not last.endswith(b"\n")
    cuts += [(lines, end)] * (len(starts) + 1 - len(cuts))
    numbers = [number for number, _ in cuts]
    others = [_places_of_lines(path, numbers, paths[0], lines) for path in paths[1:]]
    return [(*cut, *places) for cut, *places in zip(cuts, *others, strict=True)]


def _places_of_lines(path: str, numbers: Sequence[int], first: str, lines: int) -> list[int]:
    """Returns the byte offsets of some lines, counted from 0; the file must have as many lines as the first one."""
    places = [0 for number in numbers if number == 0]
    count, end, last = 0, 0, b"\n"
    for block, breaks in _line_breaks(path):
        inside = numbers[len(places) : bisect_right(numbers, count + len(breaks))]
        places += [int(breaks[number - count - 1]) + 1 for number in inside]
        count, end, last = count + len(breaks), end + len(block), block
    count += not last.endswith(b"\n")
    if count != lines:
        raise CorpusError(
            f"{first} has {lines} lines and {path} has {count}: line-aligned files must have equally many lines"
        )
    return [*places, *[end] * (len(numbers) - len(places))]


def _line_breaks(path: str) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yields blocks of a file, with the offsets in the file of the line breaks in each."""
    filesystem, name = filesystem_of(path)
    place = 0
    with filesystem.open(name, "rb") as file:
        while block := file.read(_BLOCK):
            yield block, np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n")) + place
            place += len(block)
