"""Files as rows of text, and the rows of plain text."""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from vanilla_transformer.compression import without_suffix
from vanilla_transformer.data.columns import PAIRS, RowTable, TextForm, Wanted
from vanilla_transformer.data.text_lines import read_lines, read_pieces
from vanilla_transformer.errors import CorpusError


def read_text(paths: Sequence[str], form: TextForm = PAIRS) -> RowTable:
    """Open plain text: line-aligned files, or one file with a text on each line; a packed form takes it in pieces."""
    if form.packed:
        return RowTable(enumerate((piece,) for path in paths for piece in read_pieces(path)))
    rows = _aligned_lines(*paths) if len(paths) == 2 else ((line,) for line in read_lines(paths[0]))
    suffixes = (Path(without_suffix(path).removesuffix(".txt")).suffix[1:] for path in paths)
    return RowTable(enumerate(rows, start=1), tuple(suffixes))


def _aligned_lines(first_path: str, second_path: str) -> Iterator[tuple[str, str]]:
    first, second = read_lines(first_path), read_lines(second_path)
    for number, (source, target) in enumerate(zip_longest(first, second)):
        if source is None or target is None:
            longer = number + 1 + sum(1 for _ in (second if source is None else first))
            counts = (number, longer) if source is None else (longer, number)
            raise CorpusError(
                f"{first_path} has {counts[0]} lines and {second_path} has {counts[1]}: line-aligned files "
                "must have equally many lines"
            )
        yield source, target


def column_numbers(wanted: Wanted, path: str, columns: int) -> tuple[int | None, ...] | None:
    """Return the places of columns wanted by number; None if they are wanted by name, or not at all."""
    given = [name for name in wanted if name is not None]
    if not given or not all(re.fullmatch("[0-9]+", name) for name in given):
        return None
    for name in given:
        if not 1 <= int(name) <= columns:
            raise CorpusError(f"{path}: there is no column {name}: it has {columns}, counted from 1")
    return tuple(None if name is None else int(name) - 1 for name in wanted)
