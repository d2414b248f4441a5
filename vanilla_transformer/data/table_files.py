"""Rows of text from the columns of TSV, CSV and JSONL."""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

from vanilla_transformer.data.columns import (
    PAIRS,
    Column,
    Columns,
    NumberedRows,
    RowTable,
    TextForm,
    Wanted,
    choose_columns,
)
from vanilla_transformer.data.tables import column_numbers
from vanilla_transformer.data.text_lines import decoded_lines, read_lines
from vanilla_transformer.errors import CorpusError

Record = TypeVar("Record")

# Characters in a cell. Python's own limit is 131,072; a limit keeps an unclosed quote from filling memory.
csv.field_size_limit(2**27)


def read_tsv(path: str, wanted: Wanted, form: TextForm = PAIRS) -> RowTable:
    """Open a file of tab-separated columns, in which quotes are ordinary text.

    If `wanted` gives names, the first line is a header that must hold them; if it gives numbers, counted from 1, there
    is no header. By default a first line with the names known to the form, in any order and case, is a header;
    otherwise every line is a row whose two columns are the pair or whose only one is the text.
    """
    rows = ((number, line.split("\t")) for number, line in enumerate(read_lines(path), start=1) if line)
    number, cells = first = _first(rows, path)
    words = {cell.strip().lower() for cell in cells}
    numbers = column_numbers(wanted, path, len(cells))
    if numbers is None and (any(wanted) or all(one.optional or words & {*one.aliases} for one in form.columns)):
        return _with_header(cells, rows, path, wanted, form)
    if numbers is None and form.in_order and len(cells) == len(form.columns):
        if len(words) == 2 and all(re.fullmatch(r"[a-z]{2}([_-][A-Za-z]+)?", cell) for cell in cells):
            raise CorpusError(
                f"{path}, line {number}: {' and '.join(map(repr, cells))} may be column names or the first pair: "
                "name them as the source and the target column, or add a first line with source and target"
            )
        numbers = tuple(range(len(cells)))
    missing = [
        column.setting
        for column, index in zip(form.columns, numbers or wanted, strict=True)
        if index is None and not column.optional
    ]
    if numbers is None or missing:
        raise CorpusError(
            f"{path}: no header names its {len(cells)} columns: add a first line with their names, or give "
            f"their numbers, counted from 1, as {' and '.join(missing)}"
        )
    return RowTable(_cells(chain([first], rows), path, numbers, columns=len(cells)))


def _first(rows: Iterator[Record], path: str) -> Record:
    first = next(rows, None)
    if first is None:
        raise CorpusError(f"{path} is empty")
    return first


def read_csv(path: str, wanted: Wanted, form: TextForm = PAIRS) -> RowTable:
    """Open a CSV file (RFC 4180): comma-separated, quoted with double quotes, with a header."""
    rows = _csv_rows(path)
    _, header = _first(rows, path)
    return _with_header(header, rows, path, wanted, form)


def read_jsonl(path: str, wanted: Wanted, form: TextForm = PAIRS) -> RowTable:
    """Open a file with one JSON object per line; a null is an empty text."""
    records = _json_records(path)
    first = _first(records, path)
    translation = first[1].get("translation")
    languages = list(translation) if isinstance(translation, dict) else []
    columns = choose_columns(list(first[1]), languages, wanted, path, form)
    return RowTable(_json_rows(chain([first], records), columns, path, form), columns.names)


def _with_header(
    header: list[str], rows: Iterator[tuple[int, list[str]]], path: str, wanted: Wanted, form: TextForm
) -> RowTable:
    names = choose_columns(header, (), wanted, path, form).names
    indices = [None if name is None else header.index(name) for name in names]
    return RowTable(_cells(rows, path, indices, columns=len(header)), names)


def _cells(
    rows: Iterator[tuple[int, list[str]]], path: str, indices: Sequence[int | None], columns: int
) -> NumberedRows:
    for number, row in rows:
        # A surplus cell most often comes from a separator inside a text, which would then be cut.
        if len(row) != columns:
            raise CorpusError(f"{path}, line {number}: {len(row)} columns where {columns} are needed")
        yield number, tuple("" if index is None else row[index] for index in indices)


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    # Strict, because a quote that is never closed would otherwise swallow the rest of the file.
    reader = csv.reader(decoded_lines(path), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise CorpusError(f"{path}, line {number}: not a row of CSV ({error})") from error
        if row:
            yield number, row


def _json_records(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=_without_twins)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise CorpusError(f"{path}, line {number}: not a JSON object with named columns")
        yield number, record


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse a repeated name, whose first value would be lost."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice in an object")
    return record


def _json_rows(
    records: Iterator[tuple[int, dict[str, Any]]], columns: Columns, path: str, form: TextForm
) -> NumberedRows:
    for number, record in records:
        holder = record if columns.parent is None else record.get(columns.parent)
        if not isinstance(holder, dict):
            raise CorpusError(f"{path}, line {number}: {columns.parent!r} does not hold two languages")
        where = f"{path}, line {number}"
        yield (
            number,
            tuple(
                "" if name is None else _json_text(holder, name, where, column)
                for name, column in zip(columns.names, form.columns, strict=True)
            ),
        )


def _json_text(holder: dict[str, Any], name: str, where: str, column: Column) -> str:
    if name not in holder:
        raise CorpusError(f"{where}: no column {name!r}; there are {', '.join(map(repr, holder))}")
    text = holder[name]
    if text is None:
        return ""
    if column.numbers and isinstance(text, int | float):
        return json.dumps(text)
    if not isinstance(text, str):
        raise CorpusError(f"{where}: column {name!r} holds {json.dumps(text)[:40]}, which is not text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{where}: column {name!r} holds half of a surrogate pair, which is not a character"
        ) from error
    return text


READERS = {".tsv": read_tsv, ".csv": read_csv, ".jsonl": read_jsonl}
