"""Words and their tags from files of CoNLL columns."""

import re
from itertools import chain

from vanilla_transformer.data.columns import BETWEEN_WORDS, Column, FileKind, NumberedRows, RowTable, TextForm, Wanted
from vanilla_transformer.data.tables import column_numbers
from vanilla_transformer.data.text_lines import read_lines
from vanilla_transformer.errors import CorpusError


def read_conll(path: str, wanted: Wanted) -> RowTable:
    """Open a file with one word per line, its tags in columns beside it, and an empty line after each sentence.

    Columns are separated by tabs or, in a line without tabs, by white space; `wanted` gives their numbers from 1. By
    default the first column is the word and the last its tag. Comments, which begin with ``# ``, multi-word tokens and
    empty words of CoNLL-U, and the lines ``-DOCSTART-`` of CoNLL-2003 are skipped.
    """
    return RowTable(_conll_sentences(path, wanted))


def _conll_sentences(path: str, wanted: Wanted) -> NumberedRows:
    words: list[list[str]] = []
    begin = columns = 0
    places: tuple[int, ...] = ()
    for number, line in enumerate(chain(read_lines(path), [""]), start=1):
        cells = line.split("\t") if "\t" in line else line.split()
        if not line.strip():
            if words:
                yield begin, tuple(BETWEEN_WORDS.join(column) for column in zip(*words, strict=True))
            words = []
            continue
        if cells[0] == "-DOCSTART-" or (line.startswith("# ") and "\t" not in line):
            continue
        if not columns:
            columns = len(cells)
            places = _conll_places(f"{path}, line {number}", wanted, columns)
        if len(cells) != columns:
            raise CorpusError(f"{path}, line {number}: {len(cells)} columns where {columns} are needed")
        if places[0] and re.fullmatch(r"\d+[-.]\d+", cells[0]):
            continue
        found = [cells[place].strip() for place in places]
        if not all(found):
            raise CorpusError(f"{path}, line {number}: the {'tag' if found[0] else 'word'} is missing")
        begin = begin if words else number
        words.append(found)


def _conll_places(where: str, wanted: Wanted, columns: int) -> tuple[int, ...]:
    """Find the columns of the words and, if wanted, of the tags."""
    names = [name or str(default) for name, default in zip(wanted, (1, columns), strict=False)]
    places = column_numbers(tuple(names), where, columns)
    if places is None:
        raise CorpusError(f"{where}: these columns have no names: give their numbers, counted from 1")
    if len(set(places)) < len(places):
        raise CorpusError(f"{where}: there is no column for the tags besides that of the words")
    return tuple(place for place in places if place is not None)


TAGGED_SENTENCES = TextForm(
    (Column("words", "text_column"), Column("tags", "label_column")),
    "sentences",
    "that are empty",
    tagged=True,
    files=FileKind("CoNLL columns", (".conll", ".conllu"), read_conll),
)
