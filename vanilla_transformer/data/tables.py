"""Text pairs in the columns of a TSV, CSV or JSONL file."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from vanilla_transformer.data.lines import CorpusError, decoded_lines, read_lines

Pair = tuple[str, str]


@dataclass(frozen=True)
class Columns:
    """The two columns of a table that make the pairs; `parent` is the column that holds both, where there is one."""

    source: str
    target: str
    parent: str | None = None


@dataclass(frozen=True)
class PairTable:
    """The pairs of a file, and the columns they come from where these have names."""

    columns: Columns | None
    pairs: Iterator[Pair]


def choose_columns(
    names: Sequence[str],
    languages: Sequence[str],
    wanted: tuple[str | None, str | None],
    where: str,
) -> Columns:
    """Decide which of the columns `names` make the pairs.

    `languages` are those of the column ``translation``, in its own order. The `wanted` names select two columns or
    two languages. Without them the pairs are, in this order of preference: the two languages of ``translation``; the
    columns ``source`` and ``target``; the only two columns there are.
    """
    source, target = wanted
    if (source is None) != (target is None):
        raise CorpusError(f"{where}: name both the source and the target column, or neither")
    there = f"there are {', '.join(map(repr, names))}" + (f" with languages {list(languages)}" if languages else "")
    if source is not None and target is not None:
        if source in names and target in names:
            return Columns(source, target)
        if source in languages and target in languages:
            return Columns(source, target, parent="translation")
        missing = source if source not in (*names, *languages) else target
        raise CorpusError(f"{where}: no column {missing!r}; {there}")
    if len(languages) == 2:
        return Columns(languages[0], languages[1], parent="translation")
    if not languages and "source" in names and "target" in names:
        return Columns("source", "target")
    if not languages and len(set(names)) == len(names) == 2:
        return Columns(names[0], names[1])
    raise CorpusError(f"{where}: cannot tell which columns make the pairs, name them; {there}")


def read_tsv(path: str, wanted: tuple[str | None, str | None]) -> PairTable:
    """Open a file of tab-separated columns, where quotes are text like any other.

    With `wanted` names the first line is a header and has to hold them. Without, every line is a row and its first
    two columns are the pair, except that a first line which begins with the words ``source`` and ``target`` is a
    header.
    """
    rows = ((number, line.split("\t")) for number, line in enumerate(read_lines(path), start=1) if line)
    first = next(rows, None)
    if first is None:
        raise CorpusError(f"{path} is empty")
    header = first[1]
    if wanted == (None, None):
        if header[:2] == ["source", "target"]:
            return PairTable(Columns("source", "target"), _cells(rows, path, (0, 1), at_least=2))
        return PairTable(None, _cells(chain([first], rows), path, (0, 1), at_least=2))
    return _with_header(header, rows, path, wanted)


def read_csv(path: str, wanted: tuple[str | None, str | None]) -> PairTable:
    """Open a CSV file (RFC 4180): comma-separated, quoted with double quotes, the first row a header."""
    rows = _csv_rows(path)
    first = next(rows, None)
    if first is None:
        raise CorpusError(f"{path} is empty")
    return _with_header(first[1], rows, path, wanted)


def read_jsonl(path: str, wanted: tuple[str | None, str | None]) -> PairTable:
    """Open a file with one JSON object a line; a null is an empty text."""
    records = _json_records(path)
    first = next(records, None)
    if first is None:
        raise CorpusError(f"{path} is empty")
    translation = first[1].get("translation")
    languages = list(translation) if isinstance(translation, dict) else []
    columns = choose_columns(list(first[1]), languages, wanted, path)
    return PairTable(columns, _json_pairs(chain([first], records), columns, path))


TABLE_READERS: dict[str, Callable[[str, tuple[str | None, str | None]], PairTable]] = {
    ".tsv": read_tsv,
    ".csv": read_csv,
    ".jsonl": read_jsonl,
}


def _with_header(
    header: list[str], rows: Iterator[tuple[int, list[str]]], path: str, wanted: tuple[str | None, str | None]
) -> PairTable:
    columns = choose_columns(header, (), wanted, path)
    indices = header.index(columns.source), header.index(columns.target)
    return PairTable(columns, _cells(rows, path, indices, at_least=len(header), at_most=len(header)))


def _cells(
    rows: Iterator[tuple[int, list[str]]],
    path: str,
    indices: tuple[int, int],
    at_least: int,
    at_most: int | None = None,
) -> Iterator[Pair]:
    source, target = indices
    for number, row in rows:
        if len(row) < at_least:
            raise CorpusError(f"{path}, line {number}: {len(row)} columns where {at_least} are needed")
        # One cell too many is most often a separator inside a text, which would cut that text.
        if at_most is not None and len(row) > at_most:
            raise CorpusError(f"{path}, line {number}: {len(row)} columns where the header has {at_most}")
        yield row[source], row[target]


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
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise CorpusError(f"{path}, line {number}: not a JSON object with named columns")
        yield number, record


def _json_pairs(records: Iterator[tuple[int, dict[str, Any]]], columns: Columns, path: str) -> Iterator[Pair]:
    for number, record in records:
        holder = record if columns.parent is None else record.get(columns.parent)
        if not isinstance(holder, dict):
            raise CorpusError(f"{path}, line {number}: {columns.parent!r} does not hold two languages")
        where = f"{path}, line {number}"
        yield _json_text(holder, columns.source, where), _json_text(holder, columns.target, where)


def _json_text(holder: dict[str, Any], name: str, where: str) -> str:
    if name not in holder:
        raise CorpusError(f"{where}: no column {name!r}; there are {', '.join(map(repr, holder))}")
    text = holder[name]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise CorpusError(f"{where}: column {name!r} holds {json.dumps(text)[:40]}, which is not text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CorpusError(f"{where}: column {name!r} holds half of a surrogate pair, which is no character") from error
    return text
