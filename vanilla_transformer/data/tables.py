"""Text pairs in the columns of a TSV, CSV or JSONL file, and in trees."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from vanilla_transformer.data.lines import CorpusError, decoded_lines, read_lines
from vanilla_transformer.data.trees import read_trees

Pair = tuple[str, str]

# What the two sides are called where they are not named by their languages.
SOURCE_NAMES, TARGET_NAMES = {"source", "src"}, {"target", "tgt", "trg"}
# Characters in a cell. Python's own limit is 131,072; some limit keeps a quote without an end from filling memory.
csv.field_size_limit(2**27)


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
            refuse_twins(names, (source, target), where)
            return Columns(source, target)
        if source in languages and target in languages:
            return Columns(source, target, parent="translation")
        missing = source if source not in (*names, *languages) else target
        raise CorpusError(f"{where}: no column {missing!r}; {there}")
    if len(languages) == 2:
        return Columns(languages[0], languages[1], parent="translation")
    if not languages and "source" in names and "target" in names:
        refuse_twins(names, ("source", "target"), where)
        return Columns("source", "target")
    if not languages and len(set(names)) == len(names) == 2:
        first, second = (name.strip().lower() for name in names)
        if first not in TARGET_NAMES and second not in SOURCE_NAMES:
            return Columns(names[0], names[1])
    raise CorpusError(f"{where}: cannot tell which columns make the pairs, name them; {there}")


def refuse_twins(names: Sequence[str], chosen: Sequence[str], where: str) -> None:
    """Raises CorpusError where a name that was chosen is that of several columns."""
    for name in chosen:
        if names.count(name) > 1:
            raise CorpusError(f"{where}: {names.count(name)} columns are named {name!r}: give each a name of its own")


def read_tsv(path: str, wanted: tuple[str | None, str | None]) -> PairTable:
    """Open a file of tab-separated columns, where quotes are text like any other.

    With `wanted` names the first line is a header and has to hold them. Without, a first line that has the cells
    ``source`` and ``target``, in whatever place and case, is a header; otherwise every line is a row, and its two
    columns are the pair.
    """
    rows = ((number, line.split("\t")) for number, line in enumerate(read_lines(path), start=1) if line)
    first = next(rows, None)
    if first is None:
        raise CorpusError(f"{path} is empty")
    number, cells = first
    if wanted != (None, None):
        return _with_header(cells, rows, path, wanted)
    words = [cell.strip().lower() for cell in cells]
    if {"source", "target"} <= set(words):
        table = _with_header(words, rows, path, wanted)
        return PairTable(Columns("source", "target"), table.pairs)
    if len(cells) > 2:
        raise CorpusError(
            f"{path}, line {number}: {len(cells)} columns, and nothing says which two make the pairs: put a line with "
            "their names first, and name two as the source and the target column"
        )
    if _may_be_header(cells):
        raise CorpusError(
            f"{path}, line {number}: {' and '.join(map(repr, cells))} may be names of columns or the first pair: name "
            "them as the source and the target column, or put a line with source and target before them"
        )
    return PairTable(None, _cells(chain([first], rows), path, (0, 1), columns=2))


def _may_be_header(cells: Sequence[str]) -> bool:
    """Whether a first line looks like names of columns: two codes of languages, or what the two sides are called."""
    words = [cell.strip().lower() for cell in cells]
    codes = all(re.fullmatch(r"[a-z]{2}([_-][A-Za-z]+)?", cell) for cell in cells) and len(set(cells)) == 2
    return len(words) == 2 and (codes or set(words) <= SOURCE_NAMES | TARGET_NAMES)


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


def read_mrg(path: str, wanted: tuple[str | None, str | None]) -> PairTable:
    """Sentences and their trees in one line each (section 6.3), from bracketed trees."""
    if wanted != (None, None):
        raise CorpusError(f"{path} holds trees and has no named columns: leave the names out")
    return PairTable(None, read_trees(path))


TABLE_READERS: dict[str, Callable[[str, tuple[str | None, str | None]], PairTable]] = {
    ".tsv": read_tsv,
    ".csv": read_csv,
    ".jsonl": read_jsonl,
    ".mrg": read_mrg,
}


def _with_header(
    header: list[str], rows: Iterator[tuple[int, list[str]]], path: str, wanted: tuple[str | None, str | None]
) -> PairTable:
    columns = choose_columns(header, (), wanted, path)
    indices = header.index(columns.source), header.index(columns.target)
    return PairTable(columns, _cells(rows, path, indices, columns=len(header)))


def _cells(
    rows: Iterator[tuple[int, list[str]]],
    path: str,
    indices: tuple[int, int],
    columns: int,
) -> Iterator[Pair]:
    source, target = indices
    for number, row in rows:
        # One cell too many is most often a separator inside a text, which would cut that text.
        if len(row) != columns:
            raise CorpusError(f"{path}, line {number}: {len(row)} columns where {columns} are needed")
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
            record = json.loads(line, object_pairs_hook=_without_twins)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise CorpusError(f"{path}, line {number}: not a JSON object with named columns")
        yield number, record


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which no name may stand twice: the first value would be lost."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice in an object")
    return record


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
