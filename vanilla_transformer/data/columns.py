"""Columns of text that a task reads, and the names that they may have in a table."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Column:
    """A column of text.

    Attributes:
        name: Its name in the task.
        setting: The setting of a corpus that names the table's column.
        aliases: Names that are tried in a table when that setting is missing, likeliest first.
        optional: Whether a table may lack it; its texts are then empty.
        numbers: Whether numbers, and classes of `datasets`, are accepted as text.
        several: Whether a text holds several values separated by commas, or none; lists are accepted too.
    """

    name: str
    setting: str
    aliases: tuple[str, ...] = ()
    optional: bool = False
    numbers: bool = False
    several: bool = False


@dataclass(frozen=True)
class TextForm:
    """The columns of text that a task reads.

    Attributes:
        unit: Name of its rows in messages.
        empty: Name of rows that are empty in a required column.
        parallel: Whether its two columns are translations of each other, also in line-aligned files.
        tagged: Whether its two columns are the words of a sentence and their tags, in CoNLL columns.
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


# Separates the words of a sentence, and their tags; it occurs in neither.
BETWEEN_WORDS = "\t"
BETWEEN_LABELS = ","
_TEXT = Column("text", "text_column", ("text", "sentence", "sentence1", "premise", "question1"))
_TEXT_PAIR = Column("text_pair", "text_pair_column", ("text_pair", "sentence2", "hypothesis", "question2"), True)
PAIRS = TextForm(
    (Column("source", "source_column"), Column("target", "target_column")),
    "pairs",
    "with an empty side",
    parallel=True,
)
TEXTS = TextForm((_TEXT,), "texts", "that are empty")
TEXTS_IN_BLOCKS = replace(TEXTS, in_blocks=True)
PACKED_TEXT = replace(TEXTS_IN_BLOCKS, unit="pieces of text", packed=True)
LABELLED_TEXTS = TextForm(
    (_TEXT, _TEXT_PAIR, Column("label", "label_column", ("label", "labels"), numbers=True)),
    "texts",
    "without a text or a label",
)
MULTI_LABELLED_TEXTS = replace(
    LABELLED_TEXTS, columns=(*LABELLED_TEXTS.columns[:2], replace(LABELLED_TEXTS.columns[2], several=True))
)
TAGGED_SENTENCES = TextForm(
    (Column("words", "text_column"), Column("tags", "label_column")), "sentences", "that are empty", tagged=True
)
COLUMN_SETTINGS = ("source_column", "target_column", "text_column", "text_pair_column", "label_column")
