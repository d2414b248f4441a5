"""Columns of text that a task reads, and the names that a table may have for them."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Column:
    """A column of text.

    Attributes:
        name: What it is called from then on.
        setting: The setting of a corpus that names the column of the table.
        aliases: Names that it is known by in tables where that setting is left out, the likeliest first.
        optional: Whether a table may be without it; its texts are empty then.
        numbers: Whether numbers, and classes of `datasets`, stand for their text.
        several: Whether a text of it holds several, with commas between them, or none; lists stand for it, too.
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
        unit: What rows of it are called in messages.
        empty: What rows of it are called that have nothing in a column that must not be empty.
        parallel: Whether its two columns are two texts that translate each other, in line-aligned files as well.
        tagged: Whether its two columns are the words of a sentence and their tags, in CoNLL columns.
        in_blocks: Whether a text with too many tokens becomes several rows of them, so that none is dropped.
        packed: Whether rows are pieces of a text that goes on from one to the next, with its white space and line
            ends, so that blocks of its tokens go on, too; an empty row stands where a text begins.
    """

    columns: tuple[Column, ...]
    unit: str
    empty: str
    parallel: bool = False
    tagged: bool = False
    in_blocks: bool = False
    packed: bool = False

    def without_labels(self) -> "TextForm":
        """The same without what a model is to predict."""
        return replace(self, columns=tuple(one for one in self.columns if one.setting != "label_column"))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)


# Between the words of a sentence, and between their tags: it stands in neither.
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
