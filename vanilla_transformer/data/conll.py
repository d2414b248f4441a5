"""Words and their tags from files of CoNLL columns."""

import re
from itertools import chain

from vanilla_transformer.data.columns import BETWEEN_WORDS, NumberedRows, Wanted
from vanilla_transformer.data.text_lines import read_lines
from vanilla_transformer.errors import CorpusError

SUFFIXES = (".conll", ".conllu")


def read_conll(path: str, wanted: Wanted) -> NumberedRows:
    """Yield the sentences of a file with one word per line, its tags in columns beside it, and empty lines between.

    Columns are separated by tabs or, in a line without tabs, by white space; `wanted` gives their numbers from 1. By
    default the first column is the word and the last its tag. Skipped is what cannot be a word: comments, which begin
    with ``# `` and have not the columns of words; multi-word tokens and empty words of CoNLL-U, whose first column
    numbers its words; and the lines ``-DOCSTART-`` of CoNLL-2003 between sentences.
    """
    lines = read_lines(path)
    head = list[str]()
    for line in lines:
        head.append(line)
        if line.strip() and not line.startswith(("# ", "-DOCSTART-")):
            break
    example = head[-1] if head else ""
    columns = len(_cells(example))
    places = _places(f"{path}, line {len(head)}", wanted, columns) if columns else []
    words: list[list[str]] = []
    begin = 0
    for number, line in enumerate(chain(head, lines, [""]), start=1):
        where, cells = f"{path}, line {number}", _cells(line)
        if not cells:
            if words:
                yield begin, tuple(BETWEEN_WORDS.join(column) for column in zip(*words, strict=True))
            words = []
            continue
        if line.startswith("# ") and "\t" not in line and ("\t" in example or not (words or len(cells) == columns)):
            continue
        if cells[0] == "-DOCSTART-" and not words:
            continue
        if len(cells) != columns:
            raise CorpusError(f"{where}: {len(cells)} columns where {columns} are needed")
        if places[0] and re.fullmatch(r"\d+[-.]\d+", cells[0]):
            continue
        found = [cells[place].strip() for place in places]
        if not all(found):
            raise CorpusError(f"{where}: the {'tag' if found[0] else 'word'} is missing")
        begin = begin if words else number
        words.append(found)


def _cells(line: str) -> list[str]:
    if not line.strip():
        return []
    return line.split("\t") if "\t" in line else line.split()


def _places(where: str, wanted: Wanted, columns: int) -> list[int]:
    """Find the columns of the words and, if wanted, of the tags."""
    names = [name or str(default) for name, default in zip(wanted, (1, columns), strict=False)]
    for name in names:
        if not re.fullmatch("[0-9]+", name):
            raise CorpusError(f"{where}: these columns have no names: give their numbers, counted from 1")
        if not 1 <= int(name) <= columns:
            raise CorpusError(f"{where}: there is no column {name}: it has {columns}, counted from 1")
    if len({*names}) < len(names):
        raise CorpusError(f"{where}: there is no column for the tags besides that of the words")
    return [int(name) - 1 for name in names]
