"""Columns of text that a task reads, and the choice of a table's columns for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vanilla_transformer.errors import CorpusError


@dataclass(frozen=True)
class Column:
    """A column of text.

    Attributes:
        name: Its name in the task.
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
        empty: Name of rows that are empty in a required column.
        parallel: Whether its two columns are translations of each other, also in line-aligned files.
        tagged: Whether its two columns are the words of a sentence and their tags, in files of CoNLL columns.
        in_blocks: Whether a text with too many tokens becomes several rows, so that none is dropped.
        packed: Whether rows are pieces of continuous text, with its white space and line ends, so that blocks of its
            tokens are continuous too; an empty row marks the start of a text.
    """

    columns: tuple[Column, ...]
    unit: str
    empty: str
    parallel: bool = False
    tagged: bool = False
    in_blocks: bool = False
    packed: bool = False

    def without_labels(self) -> "TextForm":
        """Return the form without the column that a model predicts."""
        return replace(self, columns=tuple(one for one in self.columns if one.setting != "label_column"))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(column.name for column in self.columns)


Wanted = tuple[str | None, ...]
"""Names of the columns of a form as given by a user, None for columns still to be found."""
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
    "with an empty side",
    parallel=True,
)
TEXTS = TextForm((_TEXT,), "texts", "that are empty")
TEXTS_IN_BLOCKS = replace(TEXTS, in_blocks=True)
PACKED_TEXT = replace(TEXTS_IN_BLOCKS, unit="pieces of text", packed=True)
TAGGED_SENTENCES = TextForm(
    (Column("words", "text_column"), Column("tags", "label_column")), "sentences", "that are empty", tagged=True
)
COLUMN_SETTINGS = ("source_column", "target_column", "text_column", "text_pair_column", "label_column")
# Begins the names of the languages that the column `translation` of a table holds.
TRANSLATION = "translation."


def choose_columns(names: Sequence[str], wanted: Wanted, where: str, form: TextForm) -> Wanted:
    """Decide which of the columns `names` are those of a form, None for one that is left out.

    Args:
        names: All columns of the table; each language of its column ``translation`` is one, such as `translation.en`.
        wanted: Names for the columns of the form, or languages. By default a pair is the two languages of
            ``translation``. Otherwise a form looks for the names it knows, and a pair or a single text takes the
            columns in order if there are as many and no name says otherwise.
        where: Name of the table in messages.
        form: The form to look for.
    """
    there = f"there are {', '.join(map(repr, names))}"
    languages = {name.removeprefix(TRANSLATION): name for name in names if name.startswith(TRANSLATION)}
    given = [name for name in wanted if name is not None]
    if form.parallel and len(given) == 1:
        raise CorpusError(f"{where}: name both the source and the target column, or neither")
    chosen = [name if name is None or name in names else languages.get(name, name) for name in wanted]
    for name in chosen:
        if name is not None and name not in names:
            raise CorpusError(f"{where}: no column {name!r}; {there}")
    if form.parallel and not given and len(languages) == 2:
        return tuple(languages.values())
    for place, column in enumerate(form.columns):
        known = [name for alias in column.aliases for name in names if name.strip().lower() == alias]
        chosen[place] = chosen[place] or next((name for name in known if name not in wanted), None)
    in_order = all(name in (None, column) for name, column in zip(chosen, names, strict=False))
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
