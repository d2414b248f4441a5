"""Files cut into parts that can be read independently, each found from its number and the files' sizes alone."""

import hashlib
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from vanilla_transformer.compression import suffix_of
from vanilla_transformer.data.text_lines import BYTE_ORDER_MARK, CorpusError, read_lines
from vanilla_transformer.extras.many_machines.filesystems import filesystem_of, naming

_ENDS = 1 << 16


class PartsError(ValueError):
    """An input that cannot be cut as asked; the message says why and what to do."""


@dataclass(frozen=True)
class Piece:
    """A stretch of an input: bytes of a plain file, a compressed file, or numbers of a Parquet file's row groups.

    A line of a plain file belongs to the piece that contains its first byte.
    """

    path: str
    start: int
    end: int
    kind: str


def cut(inputs: Sequence[str], tasks: int) -> list[list[Piece]]:
    """Returns the pieces of each of `tasks` parts of about equal size, in order.

    Raises:
        PartsError: A part would begin and end within a unit that can only be read as a whole.
    """
    wholes = [whole for path in inputs for whole in wholes_of(path)]
    pieces, sizes = [piece for piece, _ in wholes], [size for _, size in wholes]
    divisible = [piece.kind == "plain" for piece in pieces]
    parts = divide(sizes, divisible, tasks, lambda index: cannot_be_cut(pieces[index], tasks))
    return [
        [
            replace(pieces[index], start=start, end=end) if divisible[index] else pieces[index]
            for index, start, end in part
        ]
        for part in parts
    ]


def divide(
    sizes: Sequence[int], divisible: Sequence[bool], tasks: int, refusal: Callable[[int], str]
) -> list[list[tuple[int, int, int]]]:
    """Divides several wholes into `tasks` parts of about equal size: lists of (whole, start, end).

    Args:
        sizes: The sizes of the wholes.
        divisible: True for each whole that may be cut.
        refusal: Returns the error message for a whole, by its number, that may not be cut but would have to be.

    Raises:
        PartsError: A whole that may not be cut would have to be.
    """
    starts = list(itertools.accumulate(sizes, initial=0))
    borders = [starts[-1] * number // tasks for number in range(tasks + 1)]
    parts: list[list[tuple[int, int, int]]] = [[] for _ in range(tasks)]
    for index, (size, first) in enumerate(zip(sizes, starts, strict=False)):
        if not divisible[index]:
            parts[min(bisect_right(borders, first + size / 2), tasks) - 1].append((index, 0, size))
            continue
        for number in range(bisect_right(borders, first) - 1, bisect_left(borders, first + size)):
            start, end = max(borders[number], first), min(borders[number + 1], first + size)
            if start < end:
                parts[number].append((index, start - first, end - first))
    for number, part in enumerate(parts):
        around = bisect_right(starts, borders[number]) - 1
        if not part and around < len(sizes) and not divisible[around]:
            raise PartsError(refusal(around))
    return parts


def cannot_be_cut(piece: Piece, tasks: int) -> str:
    """Returns a message that says why a piece cannot be cut for so many tasks, and what to do."""
    if piece.kind == "compressed":
        return (
            f"For {tasks} tasks {piece.path} would have to be cut, but a compressed file can only be read "
            "from its start: give fewer --tasks, more files of about equal size, or uncompressed text."
        )
    return (
        f"For {tasks} tasks a row group of {piece.path} would have to be cut, but Parquet files are read in "
        "whole row groups: give fewer --tasks."
    )


def wholes_of(path: str) -> Iterator[tuple[Piece, int]]:
    """Yields the uncut pieces of an input, with the size of each in bytes."""
    filesystem, name = filesystem_of(path)
    with naming(path):
        if not filesystem.isfile(name):
            raise CorpusError(f"{path} does not exist, or is not a file")
        size = int(filesystem.size(name))
    if path.endswith(".parquet"):
        metadata = open_parquet(path).metadata
        for number in range(metadata.num_row_groups):
            yield Piece(path, number, number + 1, "parquet"), metadata.row_group(number).total_byte_size
    elif suffix_of(path):
        yield Piece(path, 0, size, "compressed"), size
    else:
        yield Piece(path, 0, size, "plain"), size


def identity(path: str) -> str:
    """Returns a fingerprint of an input without reading all of it: its size, and a hash of its beginning and end."""
    filesystem, name = filesystem_of(path)
    size = int(filesystem.size(name))
    digest = hashlib.blake2b(digest_size=8)
    with filesystem.open(name, "rb") as file:
        for place in (0, max(0, size - _ENDS)):
            file.seek(place)
            digest.update(file.read(_ENDS))
    return f"{size:,} bytes, {digest.hexdigest()}"


def read_part(pieces: Sequence[Piece], column: str | None = None) -> Iterator[str]:
    """Yields the lines of a part.

    Raises:
        CorpusError: The part cannot be read.
    """
    for piece in pieces:
        if piece.kind == "plain":
            yield from _plain_lines(piece)
        elif piece.kind == "compressed":
            yield from read_lines(piece.path)
        else:
            yield from _column(piece, column)


def _plain_lines(piece: Piece) -> Iterator[str]:
    filesystem, name = filesystem_of(piece.path)
    with filesystem.open(name, "rb") as file:
        place = _first_line(file, piece.start)
        while place < piece.end and (line := file.readline()):
            begin, place = place, place + len(line)
            if begin == 0:
                line = line.removeprefix(BYTE_ORDER_MARK)
            if line.endswith(b"\n"):
                line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise CorpusError(
                    f"{piece.path}, byte {begin + error.start + 1:,}: not UTF-8 (0x{line[error.start]:02x}); convert "
                    "the file to UTF-8 first"
                ) from error


def _first_line(file: BinaryIO, start: int) -> int:
    """Moves to the first line that begins at `start` or later, and returns its offset."""
    if start == 0:
        return 0
    file.seek(start - 1)
    return start - 1 + len(file.readline())


def _column(piece: Piece, column: str | None) -> Iterator[str]:
    parquet = open_parquet(piece.path)
    column = _text_column(piece.path, parquet.schema_arrow, column)
    for value in parquet.read_row_group(piece.start, columns=[column]).column(column).to_pylist():
        yield value or ""


def open_parquet(path: str) -> Any:
    """Opens a Parquet file on any file system."""
    import pyarrow
    import pyarrow.parquet

    filesystem, name = filesystem_of(path)
    try:
        return pyarrow.parquet.ParquetFile(filesystem.open(name, "rb"))
    except pyarrow.ArrowInvalid as error:
        raise CorpusError(f"{path} is not a Parquet file: {error}") from error


def _text_column(path: str, schema: Any, column: str | None) -> str:
    import pyarrow

    texts = [field.name for field in schema if pyarrow.types.is_string(field.type)]
    texts += [field.name for field in schema if pyarrow.types.is_large_string(field.type)]
    if column is None and len(texts) == 1:
        return texts[0]
    if column is None or column not in texts:
        wanted = "Several columns have text" if column is None else f"There is no text column {column!r}"
        raise PartsError(f"{wanted} in {path}: choose one with --source-column, of {', '.join(texts) or 'none'}.")
    return column
