"""Text pairs in tables, one after the other: a corpus is gone through, and never held whole."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, IterableDataset, Translation
from tqdm.auto import tqdm

from vanilla_transformer.data.lines import CorpusError
from vanilla_transformer.data.tables import Columns, Pair, choose_columns

PAIRS_PER_TABLE = 10_000
SCHEMA = pa.schema([("source", pa.string()), ("target", pa.string())])


@dataclass(frozen=True)
class PairStream:
    """Text pairs that can be gone through again and again.

    Attributes:
        name: What the pairs are called in messages.
        tables: Begins anew at the first pair. The tables have the columns ``source`` and ``target``.
        stamp: Another one whenever the pairs may be others; None where only reading them tells.
        pairs: How many there are, where that is known before they are read.
    """

    name: str
    tables: Callable[[], Iterator[pa.Table]]
    stamp: str | None = None
    pairs: int | None = None


def stream_of(dataset: Dataset | IterableDataset, name: str = "the dataset", stamp: str | None = None) -> PairStream:
    """Return the pairs of a dataset, in memory, on disk or streamed, with the columns ``source`` and ``target``."""
    pairs = len(dataset) if isinstance(dataset, Dataset) else None
    return PairStream(name, partial(column_tables, dataset, Columns("source", "target"), name), stamp, pairs)


def column_tables(dataset: Dataset | IterableDataset, columns: Columns, name: str) -> Iterator[pa.Table]:
    """Yield the two `columns` of a dataset as ``source`` and ``target``, an empty text for a null."""
    for table in dataset.with_format("arrow").iter(PAIRS_PER_TABLE):
        yield _text_columns(table, columns, name)


def find_columns(
    dataset: Dataset | IterableDataset, wanted: tuple[str | None, str | None], name: str
) -> tuple[Columns, Features]:
    """Decide which columns of a dataset make the pairs, and return all with their types; see `choose_columns`."""
    features = dataset.features or _features_of_first_row(dataset, name)
    translation = features.get("translation")
    languages = translation.languages if isinstance(translation, Translation) else translation
    names = list(languages) if isinstance(languages, list | tuple | dict) else []
    return choose_columns(list(features), names, wanted, name), features


def pair_tables(pairs: Iterator[Pair]) -> Iterator[pa.Table]:
    """Yield tables of the pairs of text that a file gives one by one."""
    while batch := list(islice(pairs, PAIRS_PER_TABLE)):
        sources, targets = zip(*batch, strict=True)
        yield pa.table([pa.array(sources, pa.string()), pa.array(targets, pa.string())], schema=SCHEMA)


def sample_pairs(streams: Iterable[PairStream], most: int, progress: bool = True) -> tuple[list[int], list[Pair]]:
    """Count the pairs of each stream and take some from all along them: all if there are no more than `most`.

    Otherwise at least half of `most`, at equal distances: every second one is dropped whenever there are too many.
    """
    counts: list[int] = []
    sample: list[Pair] = []
    stride, seen = 1, 0
    with tqdm(desc="reading", unit=" pairs", unit_scale=True, disable=None if progress else True) as bar:
        for stream in streams:
            before = seen
            for table in stream.tables():
                rows = pa.array(range(-seen % stride, table.num_rows, stride), pa.int64())
                sides = (table.column(name).take(rows).to_pylist() for name in ("source", "target"))
                sample += zip(*sides, strict=True)
                seen += table.num_rows
                bar.update(table.num_rows)
                while len(sample) > most:
                    del sample[1::2]
                    stride *= 2
            counts.append(seen - before)
    return counts, sample


def _features_of_first_row(dataset: IterableDataset, name: str) -> Features:
    """Return the types of a streamed dataset that does not say them before it is read."""
    table = next(chain(dataset.with_format("arrow").iter(1), [None]))
    if table is None:
        raise CorpusError(f"{name}: there are no pairs in it")
    return Features.from_arrow_schema(table.schema)


def _text_columns(table: pa.Table, columns: Columns, name: str) -> pa.Table:
    texts = []
    for column in (columns.source, columns.target):
        if columns.parent is not None:
            values = pc.struct_field(table.column(columns.parent), column)
        elif column in table.column_names:
            values = table.column(column)
        else:
            raise CorpusError(f"{name}: no column {column!r}; there are {', '.join(map(repr, table.column_names))}")
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            raise CorpusError(f"{name}: column {column!r} holds {values.type}, which is not text")
        texts.append(pc.fill_null(values, "").cast(pa.string()))
    return pa.table(texts, schema=SCHEMA)
