"""Rows of text from the columns of TSV, CSV, JSONL and CoNLL files.

The readers of `datasets` guess types: dates in JSON and numbers in CSV would no longer be the text that they were, and
a row with a cell too few would be filled up in silence. So they read only what they typed themselves, such as Parquet.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain

from vanilla_transformer.data.sources import (
    BETWEEN_WORDS,
    TRANSLATION,
    Column,
    NumberedRows,
    TextForm,
    Wanted,
    choose_columns,
)
from vanilla_transformer.data.text_lines import decoded_lines, read_lines, without_suffix, words_of
from vanilla_transformer.errors import CorpusError

# Words that are more likely the name of a column than the text of a pair.
_IS_NAME = re.compile(
    "arabic|chinese|czech|danish|dutch|english|estonian|finnish|french|german|greek|hebrew|hindi|hungarian|icelandic|"
    "italian|japanese|korean|latvian|lithuanian|norwegian|polish|portuguese|romanian|russian|slovak|slovenian|spanish|"
    "swedish|turkish|ukrainian|vietnamese|id|index|input|output|original|reference|sentence[12]?|text[12]?|translation"
)
# Characters in a cell. Python's own limit is 131,072; a limit keeps an unclosed quote from filling memory.
csv.field_size_limit(2**27)
Records = Iterator[tuple[int, dict[str, object]]]


def read_table(path: str, suffix: str, wanted: Wanted, form: TextForm) -> tuple[Wanted, NumberedRows]:
    """Opens a table: returns the names of its columns that the form is read from, and its rows.

    CSV is that of RFC 4180, with a header. In TSV quotes are ordinary text, and the first line is a header if `wanted`
    gives names or if it has those known to the form; otherwise columns are named by number, from 1. JSONL has an
    object on each line, in which a null is an empty text.
    """
    where = path
    if suffix == ".jsonl":
        records = _json_records(path)
        number, record = next(records, (0, {}))
        header, records = list(record), chain([(number, record)], records)
    else:
        lines = _csv_rows(path) if suffix == ".csv" else _tsv_rows(path)
        number, header = next(lines, (0, []))
        if suffix == ".csv" and len(header) == 1 and ";" in header[0]:
            raise CorpusError(
                f"{path}: the columns are separated by semicolons. Save the table with commas, or as TSV"
            )
        if suffix == ".tsv" and number and not _is_header(header, wanted, form):
            _refuse_languages(header, wanted, form, f"{path}, line {number}")
            lines = chain([(number, header)], lines)
            header = [str(place) for place in range(1, len(header) + 1)]
            where = f"{path}, whose columns have no header and are counted from 1"
        records = _named(lines, header, path)
    if not number:
        raise CorpusError(f"{path} is empty")
    names = choose_columns(header, wanted, where, form)
    return names, _rows(records, names, path, form)


def _is_header(cells: Sequence[str], wanted: Wanted, form: TextForm) -> bool:
    given = [name for name in wanted if name is not None]
    if given:
        return not all(re.fullmatch("[0-9]+", name) for name in given)
    words = {cell.strip().lower() for cell in cells}
    return all(column.optional or words & {*column.aliases} for column in form.columns)


def _refuse_languages(cells: Sequence[str], wanted: Wanted, form: TextForm, where: str) -> None:
    """Raises CorpusError if a first line may be a header or the first pair of a table without one."""
    names = [cell.strip().lower() for cell in cells]
    are_codes = all(re.fullmatch(r"[a-z]{2}([_-][A-Za-z]+)?", cell) for cell in cells)
    alike = len({*names}) == len(cells) == 2 and (are_codes or all(map(_IS_NAME.fullmatch, names)))
    if form.parallel and alike and not any(wanted):
        raise CorpusError(
            f"{where}: {' and '.join(map(repr, cells))} may be column names or the first pair: "
            "name them as the source and the target column, or add a first line with source and target"
        )


def _named(rows: Iterator[tuple[int, list[str]]], names: Sequence[str], path: str) -> Records:
    broken: list[int] = []
    found = 0
    for number, row in rows:
        # A surplus cell most often comes from a separator inside a text, which would then be cut.
        if len(row) != len(names):
            found = found if broken else len(row)
            broken.append(number)
        elif not broken:
            yield number, dict(zip(names, row, strict=True))
    if broken:
        first_ten = ", ".join(map(str, broken[1:11])) + (", ..." if len(broken) > 11 else "")
        others = f". Other lines with a wrong number of columns: {first_ten} ({len(broken) - 1:,} in all)"
        raise CorpusError(
            f"{path}, line {broken[0]}: {found} columns where {len(names)} are needed{others if broken[1:] else ''}"
        )


def _rows(records: Records, names: Wanted, path: str, form: TextForm) -> NumberedRows:
    places = list(zip(names, form.columns, strict=True))
    for number, record in records:
        where = f"{path}, line {number}"
        yield number, tuple("" if name is None else _text(record, name, where, column) for name, column in places)


def _text(record: dict[str, object], name: str, where: str, column: Column) -> str:
    no_pair = name.startswith(TRANSLATION) and record.get("translation", "") is None
    if name not in record and not no_pair:
        raise CorpusError(f"{where}: no column {name!r}; there are {', '.join(map(repr, record))}")
    text = record.get(name)
    if text is None:
        return ""
    if column.numbers and isinstance(text, int | float):
        return json.dumps(text)
    if not isinstance(text, str):
        raise CorpusError(f"{where}: column {name!r} holds {json.dumps(text)[:40]}, which is not text")
    if re.search("[\ud800-\udfff]", text):
        raise CorpusError(f"{where}: column {name!r} holds half of a surrogate pair, which is not a character")
    return text


def _tsv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in enumerate(read_lines(path), start=1) if line)


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    # Strict, because a quote that is never closed would otherwise swallow the rest of the file.
    reader = csv.reader(decoded_lines(path), strict=True)
    number = 1
    try:
        for row in reader:
            if row:
                yield number, row
            number = reader.line_num + 1
    except csv.Error as error:
        raise CorpusError(f"{path}, line {number}: not a row of CSV ({error})") from error


def _json_records(path: str) -> Records:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise CorpusError(f"{path}, line {number}: not a JSON object with named columns")
        if isinstance(record.get("translation"), dict):
            languages = record.pop("translation")
            record |= {TRANSLATION + language: text for language, text in languages.items()}
        yield number, record


def read_conll(path: str, wanted: Wanted) -> NumberedRows:
    """Yields the sentences of a file with one word per line, its tags in columns beside it, and empty lines between.

    Columns are separated by tabs or, in a line without tabs, by spaces; `wanted` gives their numbers from 1. By
    default the first column is the word and the last its tag. Skipped is what cannot be a word: comments, which begin
    with ``# `` and have not the columns of words; multi-word tokens and empty words of CoNLL-U, whose first column
    numbers its words; and the lines ``-DOCSTART-`` of CoNLL-2003 between sentences. In files named ``.conllu``, the
    second column is the word and the fourth its part of speech.
    """
    if without_suffix(path).endswith(".conllu"):
        wanted = tuple(name or default for name, default in zip(wanted, ("2", "4"), strict=False))
    words, places = list[list[str]](), list[int]()
    columns, begin, has_tabs = 0, 0, False
    for number, line in enumerate(chain(read_lines(path), [""]), start=1):
        where, cells = f"{path}, line {number}", _cells(line)
        if not cells:
            if words and not any(word.strip() for word, *_ in words):
                raise CorpusError(f"{path}, line {begin:,}: a sentence of white space alone")
            if words:
                yield begin, tuple(BETWEEN_WORDS.join(column) for column in zip(*words, strict=True))
            words = []
            continue
        if line.startswith("# ") and "\t" not in line and (has_tabs or not (words or len(cells) == columns)):
            continue
        if cells[0] == "-DOCSTART-" and not words:
            continue
        if not columns:
            columns, has_tabs = len(cells), "\t" in line
            places = _places(where, wanted, columns)
        if len(cells) != columns:
            raise CorpusError(f"{where}: {len(cells)} columns where {columns} are needed")
        if places[0] and re.fullmatch(r"\d+[-.]\d+", cells[0]):
            continue
        found = [cells[place].strip(" ") for place in places]
        if not all(found):
            raise CorpusError(f"{where}: the {'tag' if found[0] else 'word'} is missing")
        if " " in found[-1] and len(found) == 2:
            raise CorpusError(f"{where}: the tag {found[-1]!r} has a space, which stands between tags: leave it out")
        begin = begin if words else number
        words.append(found)


def _cells(line: str) -> list[str]:
    if not line.strip():
        return []
    return line.split("\t") if "\t" in line else words_of(line)


def _places(where: str, wanted: Wanted, columns: int) -> list[int]:
    """Finds the columns of the words and, if wanted, of the tags."""
    names = [name or str(default) for name, default in zip(wanted, (1, columns), strict=False)]
    for name in names:
        if not name.isdecimal() or not 1 <= int(name) <= columns:
            raise CorpusError(f"{where}: there is no column {name!r}: columns are counted from 1 to {columns}")
    if len({*names}) < len(names):
        raise CorpusError(f"{where}: there is no column for the tags besides that of the words")
    return [int(name) - 1 for name in names]
