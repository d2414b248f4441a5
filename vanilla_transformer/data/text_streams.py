"""Text in tables, one after the other: a corpus is read in passes and never held whole."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, IterableDataset, Translation
from tqdm.auto import tqdm

from vanilla_transformer.data.columns import PAIRS, Column, Columns, Row, TextForm, Wanted, choose_columns
from vanilla_transformer.data.row_hashes import TextHash
from vanilla_transformer.errors import CorpusError

ROWS_PER_TABLE = 10_000


@dataclass(frozen=True)
class TextStream:
    """Rows of text that can be read any number of times.

    Attributes:
        name: Their name in messages.
        tables: Starts again at the first row. The tables have the columns of `form`.
        stamp: Changes whenever the rows may have changed; None if only reading them can tell.
        rows: Their number, if it is known before they are read.
        form: Their columns.
        place: Returns the place of a row, given its number from 0.
    """

    name: str
    tables: Callable[[], Iterator[pa.Table]]
    stamp: str | None = None
    rows: int | None = None
    form: TextForm = PAIRS
    place: Callable[[int], str] | None = None

    def where(self, row: int) -> str:
        """Return the place of a row, given its number from 0."""
        return self.place(row) if self.place is not None else f"{self.name}, row {row + 1:,}"

    def text_hash(self) -> str:
        """Return the hash of the text, which reads all of it."""
        text = TextHash()
        for table in self.tables():
            text.update(table)
        return text.hexdigest()

    def is_still(self, stamp: str | None, text: str) -> bool:
        """Tell whether the stream still gives the text with that hash, which it gave when it had that stamp."""
        return (self.stamp is not None and self.stamp == stamp) or self.text_hash() == text


def stream_of(
    dataset: Dataset | IterableDataset,
    name: str = "the dataset",
    stamp: str | None = None,
    form: TextForm = PAIRS,
    columns: Columns | None = None,
) -> TextStream:
    """Return a stream of a dataset in memory, on disk or streamed: its `columns`, or those with the form's names."""
    rows = len(dataset) if isinstance(dataset, Dataset) else None

    def tables() -> Iterator[pa.Table]:
        classes = class_names(dataset.features or {})
        for table in dataset.with_format("arrow").iter(ROWS_PER_TABLE):
            yield text_columns(table, columns or Columns(form.names), name, form, classes)

    return TextStream(name, tables, stamp, rows, form)


def class_names(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the class names of each column that has classes."""
    return {column: one.names for column, one in features.items() if isinstance(one, ClassLabel)}


def find_columns(dataset: Dataset, wanted: Wanted, name: str, form: TextForm = PAIRS) -> Columns:
    """Decide which columns of a dataset are those of a form; see `choose_columns`."""
    translation = dataset.features.get("translation")
    languages = translation.languages if isinstance(translation, Translation) else translation
    names = list(languages) if isinstance(languages, list | tuple | dict) else []
    return choose_columns(list(dataset.features), names, wanted, name, form)


def row_tables(rows: Iterator[Row], form: TextForm = PAIRS) -> Iterator[pa.Table]:
    """Yield tables of the rows of text that a file gives one by one."""
    while batch := list(islice(rows, ROWS_PER_TABLE)):
        columns = zip(*batch, strict=True)
        yield pa.table([pa.array(column, pa.string()) for column in columns], schema=text_schema(form))


def sample_rows(streams: Sequence[TextStream], most: int) -> tuple[list[int], list[str], list[Row]]:
    """Count the rows of each stream, hash its text and sample all rows evenly: all if there are no more than `most`.

    Otherwise the sample has at least half of `most`, at equal distances: every second row is dropped when there are
    too many.
    """
    counts: list[int] = []
    texts: list[str] = []
    sample: list[Row] = []
    stride, seen = 1, 0
    unit = f" {streams[0].form.unit}" if streams else ""
    with tqdm(desc="reading", unit=unit, unit_scale=True, disable=None) as bar:
        for stream in streams:
            before, text = seen, TextHash()
            for table in stream.tables():
                text.update(table)
                rows = pa.array(range(-seen % stride, table.num_rows, stride), pa.int64())
                columns = (table.column(name).take(rows).to_pylist() for name in stream.form.names)
                sample += zip(*columns, strict=True)
                seen += table.num_rows
                bar.update(table.num_rows)
                while len(sample) > most:
                    del sample[1::2]
                    stride *= 2
            counts.append(seen - before)
            texts.append(text.hexdigest())
    return counts, texts, sample


def text_schema(form: TextForm, metadata: dict[str, str] | None = None) -> pa.Schema:
    """Return the types of a form's columns in tables."""
    return pa.schema([(name, pa.string()) for name in form.names], metadata)


def text_columns(
    table: pa.Table, columns: Columns, name: str, form: TextForm, classes: dict[str, list[str]]
) -> pa.Table:
    """Return `columns` of a table under the names of the form, with an empty text for a null."""
    texts = []
    for column, chosen in zip(form.columns, columns.names, strict=True):
        if chosen is None or (column.optional and chosen not in table.column_names):
            texts.append(pa.array([""] * table.num_rows, pa.string()))
            continue
        if columns.parent is not None:
            values = pc.struct_field(table.column(columns.parent), chosen)
        elif chosen in table.column_names:
            values = table.column(chosen)
        else:
            raise CorpusError(f"{name}: no column {chosen!r}; there are {', '.join(map(repr, table.column_names))}")
        texts.append(pc.fill_null(_as_text(values, column, chosen, name, classes), "").cast(pa.string()))
    return pa.table(texts, schema=text_schema(form))


def _as_text(
    values: pa.ChunkedArray, column: Column, chosen: str, name: str, classes: dict[str, list[str]]
) -> pa.ChunkedArray | pa.Array:
    """Return text as it is; numbers, and classes by name, if a column accepts them."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values
    if column.numbers and chosen in classes:
        known = pc.if_else(pc.greater_equal(values, 0), values, None)  # -1 is a text without a label.
        return pa.array(classes[chosen]).take(known.combine_chunks())
    if column.numbers and (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return values.cast(pa.string())
    raise CorpusError(f"{name}: column {chosen!r} holds {kind}, which is not text")
