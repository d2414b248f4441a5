"""A corpus in tokens: named columns of ids, made once, kept on disk, read by position."""

import hashlib
import json
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from datasets import Dataset, IterableDataset
from numpy.typing import NDArray
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast

from vanilla_transformer.atomic_files import atomic_write
from vanilla_transformer.data.columns import PAIRS, TextForm
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.data.text_streams import TextStream, stream_of
from vanilla_transformer.fingerprints import fingerprint_settings
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer, cased
from vanilla_transformer.plain_text import plain_text

TOKENS_FILE = "tokens.arrow"
REPORT_FILE = "report.json"
_DIGEST = 16
# Version of the stored format; a new number makes all tokens again.
LAYOUT = 3

Ids = NDArray[np.unsignedinteger]
Lengths = NDArray[np.integer]
Rows = Mapping[str, Sequence[Ids]]
"""Rows of a corpus by column: each name with the ids of its rows."""


class Encoder(Protocol):
    """Turns text into ids: the part of a task that preparation needs."""

    @property
    def name(self) -> str:
        """Name of the task."""

    @property
    def form(self) -> TextForm:
        """The columns of text that it reads."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of ids made from them."""

    @property
    def settings(self) -> tuple[Any, ...]:
        """Settings that the ids depend on, besides the text and the tokenizer."""

    def ids(self, tokenizer: PreTrainedTokenizerFast) -> int:
        """Return the number of ids: all are below it."""

    def encode(
        self, texts: Mapping[str, Sequence[str]], tokenizer: PreTrainedTokenizerFast
    ) -> Mapping[str, Sequence[Sequence[int]]]:
        """Return the ids of every row for each of `columns`, from the text of every row for each column of `form`.

        If the form is `in_blocks`, a row of text may give several rows of ids. If it is `packed`, it gives one, which
        is cut into blocks together with its neighbours; an empty row begins a text.
        """


@dataclass(frozen=True)
class TaggedEncoder:
    """An encoder's ids with a tag before each source: a piece of the vocabulary that no text contains."""

    encoder: Encoder
    tag: str

    @property
    def name(self) -> str:
        """Name of the wrapped encoder."""
        return self.encoder.name

    @property
    def form(self) -> TextForm:
        """Form of the wrapped encoder."""
        return self.encoder.form

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the wrapped encoder."""
        return self.encoder.columns

    @property
    def settings(self) -> tuple[Any, ...]:
        """Settings of the wrapped encoder, and the tag."""
        return (*self.encoder.settings, "tag", self.tag)

    def ids(self, tokenizer: PreTrainedTokenizerFast) -> int:
        """Return the wrapped encoder's number of ids."""
        return self.encoder.ids(tokenizer)

    def encode(
        self, texts: Mapping[str, Sequence[str]], tokenizer: PreTrainedTokenizerFast
    ) -> Mapping[str, Sequence[Sequence[int]]]:
        """Return the wrapped encoder's ids, with the tag's id before those of the first column."""
        encoded, first = self.encoder.encode(texts, tokenizer), self.columns[0]
        tag = tokenizer.get_vocab()[self.tag]
        return {**encoded, first: [[tag, *ids] for ids in encoded[first]]}


@dataclass(frozen=True)
class PreparationReport:
    """Counts of a corpus's rows, kept and dropped; a text in several blocks counts as several rows."""

    read: int
    kept: int
    dropped_empty: int
    dropped_too_long: int

    @property
    def is_sound(self) -> bool:
        """Tells whether the values are valid counts, with each row in exactly one of them."""
        counts = self.kept, self.dropped_empty, self.dropped_too_long
        return all(type(count) is int and count >= 0 for count in counts) and self.read == sum(counts)

    def __str__(self) -> str:
        return self.describe(PAIRS)

    def describe(self, form: TextForm) -> str:
        """Return the counts in words, with the form's name for rows."""
        dropped = {form.empty: self.dropped_empty, "that are too long": self.dropped_too_long}
        reasons = [f"{count:,} {reason}" for reason, count in dropped.items() if count]
        return f"{self.kept:,} of {self.read:,} {form.unit}" + (
            f", without {' and '.join(reasons)}" if reasons else ""
        )


@dataclass(frozen=True)
class EpochPart:
    """Rows of an epoch that are planned together.

    Attributes:
        number: Its position among the parts of the epoch.
        corpus: The rows.
        before: Share of the epoch's rows in the parts before it; `share` is its own.
    """

    number: int
    corpus: "PreparedCorpus"
    before: float = 0.0
    share: float = 1.0


class TrainingCorpus(ABC):
    """Rows of token ids to learn from, in one or several parts per epoch.

    Attributes:
        report: Numbers of rows kept and dropped.
        tokens: A hash of all ids in their order: it changes whenever a model would learn from other data.
        texts: A hash of the underlying text, for each corpus of a mixture.
    """

    report: PreparationReport
    tokens: str
    texts: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows in an epoch."""

    @property
    @abstractmethod
    def token_counts(self) -> tuple[int, ...]:
        """The ids in an epoch, for each column."""

    @abstractmethod
    def epoch_parts(self, epoch: int, first: int = 0) -> Iterator[EpochPart]:
        """Yield the parts of an epoch in order, starting with the part `first`."""

    @abstractmethod
    def all_lengths(self) -> Iterator[tuple[Lengths, ...]]:
        """Yield the lengths of all rows by column, some rows at a time."""


class PreparedCorpus(TrainingCorpus):
    """Rows of token ids in named columns, by position.

    Attributes:
        lengths: Number of ids in each row, including end tokens, by column in the order of the columns.
    """

    lengths: Mapping[str, Lengths]

    def __len__(self) -> int:
        return len(next(iter(self.lengths.values())))

    @property
    def token_counts(self) -> tuple[int, ...]:
        """The ids of all rows, for each column."""
        return tuple(int(lengths.sum(dtype=np.int64)) for lengths in self.lengths.values())

    @abstractmethod
    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> Rows:
        """Return the ids of the rows at `indices`, by column."""

    def of_epoch(self, epoch: int) -> "PreparedCorpus":
        """Return the rows of an epoch: always these, except in a mixture that draws some of them."""
        return self

    def row_numbers(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers that identify the rows at `indices`, whichever part of a corpus they are read from."""
        return indices

    def epoch_parts(self, epoch: int, first: int = 0) -> Iterator[EpochPart]:
        """Yield all rows as one part."""
        if first == 0:
            yield EpochPart(0, self.of_epoch(epoch))

    def all_lengths(self) -> Iterator[tuple[Lengths, ...]]:
        """Yield the lengths of all rows at once."""
        yield tuple(self.lengths.values())


class StoredCorpus(PreparedCorpus):
    """The rows that `prepare_corpus` kept in `directory`, memory-mapped.

    Raises:
        CorpusError: The directory holds no tokens, or tokens in another version's format.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        report = _what_is_there(directory)
        if report is None:
            raise CorpusError(f"{directory} holds no tokenized corpus that this version can read: prepare it again")
        self.report = PreparationReport(**{name: report[name] for name in PreparationReport.__dataclass_fields__})
        self.tokens, self.texts = report["tokens"], (report["text"],)
        self._file = TokenFile(directory / TOKENS_FILE)
        self.lengths = self._file.lengths()

    def __reduce__(self) -> tuple[type["StoredCorpus"], tuple[Path]]:
        # Another process maps the file again instead of receiving a copy.
        return StoredCorpus, (self.directory,)

    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> Rows:
        """Return the ids of the rows at `indices`, by column, as views of the file."""
        return self._file.rows(indices)


def rows_of_several(
    parts: Sequence["PreparedCorpus | TokenFile"], starts: NDArray[np.int64], positions: NDArray[np.int64]
) -> Rows:
    """Return rows of several corpora by their positions overall, where each corpus begins at one of `starts`."""
    owners = np.searchsorted(starts, positions, side="right") - 1
    found: dict[str, list[Ids]] = {}
    for number in np.unique(owners).tolist():
        places = np.flatnonzero(owners == number)
        for name, column in parts[number].rows(positions[places] - starts[number]).items():
            all_rows = found.setdefault(name, [None] * len(positions))  # type: ignore[list-item]
            for place, ids in zip(places.tolist(), column, strict=True):
                all_rows[place] = ids
    return found


def prepare_corpus(
    corpus: TextStream | Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerFast,
    task: Encoder,
    *,
    max_length: int,
    directory: Path,
    progress: bool = True,
) -> StoredCorpus:
    """Turn text into tokens in `directory`, or open those already made there from the same text, tokenizer and task.

    The text is read once. If the tokens exist, it is read only if its stamp does not prove it unchanged.

    Args:
        corpus: Rows of text; a dataset, streamed or not, has the columns of the task's form.
        tokenizer: Gives the ids.
        task: Gives the columns of ids, and turns each row of text into its ids: the result of
            `vanilla_transformer.tasks.get_task` for a name, or its `encoder`.
        max_length: A row with more tokens in a column is dropped, as is one with only white space in a column.
        directory: Created if it does not exist. Nothing in it is used before all of it is written.
        progress: Whether to show a bar on standard error.

    Raises:
        CorpusError: No row is left.
    """
    directory = Path(directory)
    stream = corpus if isinstance(corpus, TextStream) else stream_of(corpus, form=task.form)
    settings = settings_fingerprint(tokenizer, task, max_length)
    there = _what_is_there(directory)
    if there is None or there["settings"] != settings or not is_same_text(stream, there["stamp"], there["text"]):
        made = _write_tokens(stream, tokenizer, task, max_length, directory, progress)
        _write_report(directory, {**made, "settings": settings, "stamp": stream.stamp})
    elif stream.stamp is not None and there["stamp"] != stream.stamp:
        _write_report(directory, {**there, "stamp": stream.stamp})
    return StoredCorpus(directory)


class _Column(NamedTuple):
    """One column of adjacent rows: their ids one after the other, and where each row begins and ends."""

    ids: Ids
    bounds: NDArray[np.int32]

    @classmethod
    def from_arrow(cls, column: pa.ListArray) -> "_Column":
        return cls(column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy(zero_copy_only=True))

    def row(self, offset: int) -> Ids:
        return self.ids[self.bounds[offset] : self.bounds[offset + 1]]

    def hashed(self) -> tuple[memoryview, NDArray[np.int64]]:
        return self.ids.data, np.diff(self.bounds).astype(np.int64)


class TokenFile:
    """Rows of ids in named columns, in an Arrow file that is memory-mapped.

    Raises:
        ValueError: The file is damaged.
    """

    def __init__(self, path: Path) -> None:
        file = pa.memory_map(str(path))
        reader = pa.ipc.open_file(file)
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        _refuse_buffers_outside(file, batches)
        self._columns = {
            name: [_Column.from_arrow(batch.column(name)) for batch in batches] for name in reader.schema.names
        }
        self._ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)
        self.names = tuple(reader.schema.names)
        self.id = (reader.schema.metadata or {}).get(b"id", b"").decode()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def lengths(self) -> dict[str, NDArray[np.int32]]:
        """Return the number of ids in each row, by column."""
        empty = np.zeros(0, dtype=np.int32)
        return {
            name: np.concatenate([empty, *(np.diff(part.bounds) for part in parts)])
            for name, parts in self._columns.items()
        }

    def hexdigest(self) -> str:
        """Return the hash that `write_token_file` computed of these ids, by reading all of them."""
        tokens = RowHash()
        for batch in zip(*self._columns.values(), strict=True):
            tokens.add(column.hashed() for column in batch)
        return tokens.hexdigest()

    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> dict[str, list[Ids]]:
        """Return the ids of the rows at `indices`, by column, as views of the file."""
        positions = np.asarray(indices, dtype=np.int64)
        batches = np.searchsorted(self._ends, positions, side="right")
        offsets = positions - np.concatenate(([0], self._ends))[batches]
        places = list(zip(batches.tolist(), offsets.tolist(), strict=True))
        return {name: [parts[batch].row(offset) for batch, offset in places] for name, parts in self._columns.items()}


def _refuse_buffers_outside(file: pa.MemoryMappedFile, batches: Iterable[pa.RecordBatch]) -> None:
    """Raises ValueError if memory beyond the end of the file would be read, which would kill the process."""
    file.seek(0)
    whole = file.read_buffer()
    for batch in batches:
        batch.validate()
        for buffer in chain.from_iterable(column.buffers() for column in batch.columns):
            if buffer is not None and not 0 <= buffer.address - whole.address <= whole.size - buffer.size:
                raise ValueError("ids beyond the end of the file")


def _what_is_there(directory: Path) -> dict[str, Any] | None:
    """Return the report of existing tokens if they are complete and match it, else None."""
    try:
        report = json.loads((directory / REPORT_FILE).read_text(encoding="utf-8"))
        counts = PreparationReport(**{name: report[name] for name in PreparationReport.__dataclass_fields__})
        tokens = TokenFile(directory / TOKENS_FILE)
        is_its_own = report["id"] == tokens.id and counts.kept == len(tokens) > 0
        is_sound = counts.is_sound and {"settings", "text", "tokens", "stamp"} <= report.keys()
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return report if is_its_own and is_sound else None


def _write_report(directory: Path, report: dict[str, Any]) -> None:
    with atomic_write(directory / REPORT_FILE) as temporary:
        temporary.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def settings_fingerprint(tokenizer: PreTrainedTokenizerFast, task: Encoder, max_length: int) -> str:
    """Hash everything that the tokens depend on, except the text."""
    tokenizer = plain_text(tokenizer)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    # Settings of earlier calls stay in the tokenizer, but do not affect this one.
    del backend["padding"], backend["truncation"]
    special = tokenizer.split_special_tokens
    settings = [LAYOUT, task.name, task.columns, max_length, special, backend, *task.settings]
    return fingerprint_settings(settings)


def is_same_text(stream: TextStream, stamp: str | None, text: str) -> bool:
    """Tell whether a stream still gives the text with that hash, which it gave when it had that stamp."""
    return (stream.stamp is not None and stream.stamp == stamp) or text_hash(stream) == text


def text_hash(corpus: TextStream) -> str:
    """Return the hash of a corpus's text, which reads all of it."""
    text = TextHash()
    for table in corpus.tables():
        text.update(table)
    return text.hexdigest()


def has_equal_sides(text: str) -> bool:
    """Tell by the hash of a two-column text whether its columns are identical."""
    *columns, _ = [text[start : start + 2 * _DIGEST] for start in range(0, len(text), 2 * _DIGEST)]
    return len(columns) == 2 and columns[0] == columns[1]


class RowHash:
    """A hash of rows of sequences that does not depend on the portions they arrive in."""

    def __init__(self) -> None:
        self._columns: list[Any] = []
        self._lengths = hashlib.blake2b(digest_size=_DIGEST)

    def add(self, columns: Iterable[tuple[memoryview, NDArray[np.int64]]]) -> None:
        """Add rows, given for each column as the contents of its sequences and the length of each."""
        contents, lengths = zip(*columns, strict=True)
        self._columns = self._columns or [hashlib.blake2b(digest_size=_DIGEST) for _ in contents]
        for hashed, content in zip(self._columns, contents, strict=True):
            hashed.update(content)
        self._lengths.update(np.stack(lengths, axis=1).data)

    def hexdigest(self) -> str:
        """Return the hash of all rows so far: the hashes of the columns, then that of the lengths."""
        return "".join(part.hexdigest() for part in (*self._columns, self._lengths))


class TextHash(RowHash):
    """A hash of text that does not depend on its division into tables."""

    def update(self, table: pa.Table) -> None:
        """Add the rows of a table."""
        sides = []
        for name in table.column_names:
            column = pa.concat_arrays(table.column(name).cast(pa.large_string()).chunks)
            _, offsets, text = column.buffers()
            bounds = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
            sides.append((memoryview(text or b"")[bounds[0] : bounds[-1]], np.diff(bounds)))
        self.add(sides)


def _write_tokens(
    stream: TextStream,
    tokenizer: PreTrainedTokenizerFast,
    task: Encoder,
    max_length: int,
    directory: Path,
    progress: bool,
) -> dict[str, Any]:
    """Write the ids of the rows that are neither empty nor too long; return the report about the text."""
    name = secrets.token_hex(8)
    directory.mkdir(parents=True, exist_ok=True)
    with (
        atomic_write(directory / TOKENS_FILE) as temporary,
        tqdm(
            total=stream.rows,
            desc="tokenizing",
            unit=f" {task.form.unit}",
            unit_scale=True,
            disable=None if progress else True,
        ) as bar,
    ):
        made = write_token_file(stream.tables(), temporary, name, tokenizer, task, max_length, bar.update)
        counts = {field: made[field] for field in PreparationReport.__dataclass_fields__}
        refuse_nothing(stream.name, PreparationReport(**counts), task.form, max_length)
    return {"id": name, **made}


def write_token_file(
    tables: Iterable[pa.Table],
    path: Path,
    name: str,
    tokenizer: PreTrainedTokenizerFast,
    task: Encoder,
    max_length: int,
    progress: Callable[[int], object] = lambda rows: None,
) -> dict[str, Any]:
    """Write the ids of rows that are neither empty nor too long; return hashes of text and ids, and the counts.

    Args:
        tables: The text.
        path: The file to write.
        name: The id stored in the file.
        progress: Called with the number of rows in each table.
    """
    # A half or a quarter of the size of 64-bit ids.
    kind = pa.list_(pa.uint16() if task.ids(tokenizer) <= 1 << 16 else pa.uint32())
    schema = pa.schema([(column, kind) for column in task.columns], metadata={"id": name})
    text, tokens, read, kept, empty = TextHash(), RowHash(), 0, 0, 0
    longest = _longest_text(tokenizer, max_length)
    packed = _PackedBlocks(max_length) if task.form.packed else None
    required = [number for number, column in enumerate(task.form.columns) if not (column.optional or column.several)]
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:

        def write(rows: Sequence[tuple[Sequence[int], ...]]) -> int:
            if rows:
                columns = [_id_lists(ids, kind) for ids in zip(*rows, strict=True)]
                writer.write_batch(pa.record_batch(columns, schema))
                tokens.add(_Column.from_arrow(column).hashed() for column in columns)
            return len(rows)

        for table in tables:
            text.update(table)
            texts = list(zip(*(table.column(column).to_pylist() for column in task.form.names), strict=True))
            if packed is not None:
                kept += write(packed.add(texts, _encoded(texts, tokenizer, task)))
            else:
                full = [row for row in texts if all(row[number].strip() for number in required)]
                fitting = full if task.form.in_blocks else [row for row in full if max(map(len, row)) <= longest]
                rows = _encoded(fitting, tokenizer, task)
                kept += write(_short_enough(rows, max_length))
                read += table.num_rows + len(rows) - len(fitting)
                empty += table.num_rows - len(full)
            progress(table.num_rows)
        if packed is not None:
            kept += write(packed.rest())
            read = kept
    report = PreparationReport(read, kept, empty, read - empty - kept)
    return {"text": text.hexdigest(), "tokens": tokens.hexdigest(), **asdict(report)}


class _PackedBlocks:
    """Cuts the ids of texts given in pieces into blocks of `most`, each starting with the last id of the one before.

    So all ids of a text but the first are predicted exactly once.
    """

    def __init__(self, most: int) -> None:
        self._most, self._open = most, list[int]()

    def add(
        self, texts: Sequence[tuple[str, ...]], ids: Sequence[tuple[Sequence[int], ...]]
    ) -> list[tuple[list[int]]]:
        """Return the blocks that are full after some more pieces; an empty piece ends the text before it."""
        blocks: list[tuple[list[int]]] = []
        for (piece,), (its_ids,) in zip(texts, ids, strict=True):
            if not piece:
                blocks += self.rest()
            self._open += its_ids
        return blocks + self._full()

    def rest(self) -> list[tuple[list[int]]]:
        """Return the blocks up to the end of the text; the last may be shorter."""
        blocks = self._full()
        blocks += [(self._open,)] if len(self._open) > 1 else []
        self._open = []
        return blocks

    def _full(self) -> list[tuple[list[int]]]:
        """Yields the full blocks; the last id stays, because the next block begins with it."""
        starts = range(0, len(self._open) - self._most, self._most - 1)
        blocks = [(self._open[start : start + self._most],) for start in starts]
        self._open = self._open[len(starts) * (self._most - 1) :]
        return blocks


def refuse_nothing(name: str, report: PreparationReport, form: TextForm, max_length: int) -> None:
    """Raise CorpusError if no row of the named corpus is left."""
    if not report.read:
        raise CorpusError(f"there are no {form.unit} in {name}")
    if not report.kept:
        raise CorpusError(
            f"{name}: none of {report.read:,} {form.unit} is left: {report.dropped_empty:,} {form.empty} and "
            f"{report.dropped_too_long:,} of more than {max_length} tokens"
        )


def _longest_text(tokenizer: PreTrainedTokenizerFast, max_length: int) -> float:
    """Return the most characters that `max_length` tokens can hold: longer texts need not be tokenized.

    Tokenizing a single 10 MB word takes seconds and gigabytes. Other tokenizers may skip characters, so no limit is
    known.
    """
    own = isinstance(tokenizer, VanillaTransformerTokenizer) and not tokenizer.extra_special_tokens
    return max_length * max(map(len, tokenizer.get_vocab())) if own else math.inf


def _encoded(
    texts: Sequence[tuple[str, ...]], tokenizer: PreTrainedTokenizerFast, task: Encoder
) -> list[tuple[Sequence[int], ...]]:
    if not texts:
        return []
    ids = task.encode(dict(zip(task.form.names, zip(*texts, strict=True), strict=True)), tokenizer)
    return list(zip(*(ids[column] for column in task.columns), strict=True))


def token_ids(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast, *, target: bool = False) -> list[list[int]]:
    """Return the ids of each text, including those the tokenizer adds at its ends; a `target` keeps its case."""
    # The tokenizer's own call makes many Python objects that are not needed here, and takes twice as long. The backend
    # already works on all cores; processes on top of it only cost memory.
    tokenizer = plain_text(tokenizer)
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    normalizer = backend.normalizer
    of_target = cased(normalizer)
    if not target or of_target is normalizer:
        return [encoding.ids for encoding in backend.encode_batch_fast(texts)]
    backend.normalizer = of_target
    try:
        return [encoding.ids for encoding in backend.encode_batch_fast(texts)]
    finally:
        backend.normalizer = normalizer


def _short_enough(rows: Iterable[tuple[Sequence[int], ...]], max_length: int) -> list[tuple[Sequence[int], ...]]:
    return [row for row in rows if max(map(len, row)) <= max_length]


def _id_lists(rows: Sequence[Sequence[int]], kind: pa.ListType) -> pa.ListArray:
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    ids = np.fromiter(chain.from_iterable(rows), kind.value_type.to_pandas_dtype(), count=offsets[-1])
    return pa.ListArray.from_arrays(offsets, ids, type=kind)
