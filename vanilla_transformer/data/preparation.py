"""Preparation of a corpus: text becomes tokens once, which are kept on disk and read by position."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, List as ListOf, Value
from datasets.fingerprint import Hasher
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.data.batching import Lengths
from vanilla_transformer.data.corpus import as_text, fingerprint_settings
from vanilla_transformer.data.encoding import Encoder, Ids, Rows as Rows, Texts as Texts
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer, plain_text

# Version of the stored format; a new number makes all tokens again.
LAYOUT = 4
TOKENS_FILE = "tokens.arrow"
REPORT_FILE = "tokens.json"
Piece = tuple[Ids, NDArray[np.integer]]
"""Ids of some rows of a column one after the other, and where each row begins and ends in them."""


@dataclass(frozen=True)
class PreparationReport:
    """Counts of a corpus's rows, kept and dropped; a text in several blocks counts as several rows."""

    read: int
    kept: int
    dropped_empty: int
    dropped_too_long: int

    def describe(self, unit: str) -> str:
        """Returns the counts in words, with the name of the rows."""
        dropped = f"{self.dropped_empty:,} are empty and {self.dropped_too_long:,} too long"
        return f"{self.kept:,} of {self.read:,} {unit}" + (f"; {dropped}" if self.kept < self.read else "")


class PreparedCorpus:
    """Rows of token ids in named columns, by position.

    Attributes:
        tokens: A hash of all ids in their order: it changes whenever a model would learn from other data.
        lengths: Number of ids in each row, including end tokens, by column in the order of the columns.
        columns: The pieces of each column, in memory-mapped files.
        starts: Position of the first row of each piece, and the number of all rows.
    """

    report: PreparationReport
    tokens: str
    lengths: Mapping[str, Lengths]
    columns: Mapping[str, Sequence[Piece]]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(next(iter(self.lengths.values())))

    @property
    def token_counts(self) -> tuple[int, ...]:
        """The ids of all rows, for each column."""
        return tuple(int(lengths.sum(dtype=np.int64)) for lengths in self.lengths.values())

    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> Rows:
        """Returns the ids of the rows at `indices`, by column, as views of the files."""
        positions = np.asarray(indices, dtype=np.int64)
        numbers = np.searchsorted(self.starts, positions, side="right") - 1
        places = list(zip(numbers.tolist(), (positions - self.starts[numbers]).tolist(), strict=True))
        return {
            name: [ids[bounds[at] : bounds[at + 1]] for number, at in places for ids, bounds in [pieces[number]]]
            for name, pieces in self.columns.items()
        }

    def of_epoch(self, epoch: int) -> "PreparedCorpus":
        """Returns the rows of an epoch: always these, except in a mixture that draws some of them."""
        return self


class StoredCorpus(PreparedCorpus):
    """The rows that `prepare_corpus` kept in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            record = json.loads((directory / REPORT_FILE).read_text(encoding="utf-8"))
            self.report, self.fingerprint = PreparationReport(**record["report"]), str(record["fingerprint"])
            table = Dataset.from_file(str(directory / TOKENS_FILE)).data
            if not len(table) == self.report.kept > 0:
                raise ValueError(f"{len(table)} rows")
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise CorpusError(f"{directory} holds no tokenized corpus that can be read: prepare it again") from error
        self.columns = {
            name: [(piece.values.to_numpy(), piece.offsets.to_numpy()) for piece in table.column(name).chunks]
            for name in table.column_names
        }
        self.starts = np.cumsum([0, *map(len, table.column(0).chunks)])
        self.lengths = {
            name: np.concatenate([np.diff(bounds) for _, bounds in pieces]) for name, pieces in self.columns.items()
        }
        self.tokens = self._hash()

    def _hash(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for name, pieces in self.columns.items():
            for ids, bounds in pieces:
                digest.update(ids[bounds[0] : bounds[-1]].data)
            digest.update(self.lengths[name].data)
        return digest.hexdigest()


def prepare_corpus(
    corpus: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    encoder: Encoder,
    *,
    max_length: int,
    directory: Path,
) -> StoredCorpus:
    """Turns text into tokens in `directory`, or opens those already made there from the same text, tokenizer and task.

    Args:
        corpus: Rows of text with the columns of the encoder's form, as `read_corpus` returns them.
        tokenizer: Gives the ids: any tokenizer of transformers.
        encoder: Turns rows of text into ids: the `encoder` of a task.
        max_length: A row with more tokens in a column is dropped, as is one with only white space in a column.
        directory: Created if it does not exist. Nothing in it is used before all of it is written.

    Raises:
        CorpusError: No row is left.
    """
    directory = Path(directory)
    if not isinstance(corpus, Dataset):
        raise CorpusError("a corpus is read by row numbers: load the dataset without streaming")
    made = fingerprint_settings([corpus._fingerprint, settings_fingerprint(tokenizer, encoder, max_length)])
    with suppress(CorpusError):
        if (there := StoredCorpus(directory)).fingerprint == made:
            return there
    name, form = corpus.info.description or "the dataset", encoder.form
    corpus = as_text(corpus, form, form.names, name)
    kind = Value("uint16" if encoder.ids(tokenizer) <= 1 << 16 else "uint32")
    features = Features({column: ListOf(kind) for column in encoder.columns})
    batches = _Batches(tokenizer, encoder, features.arrow_schema, max_length, len(corpus))
    (directory / REPORT_FILE).unlink(missing_ok=True)  # It would not be that of the next tokens.
    with atomic_directory(directory, "tokens", last=REPORT_FILE) as temporary:
        corpus.with_format("arrow").map(
            batches,
            with_indices=True,
            batched=True,
            remove_columns=corpus.column_names,
            features=features,
            new_fingerprint=made,
            cache_file_name=str(temporary / TOKENS_FILE),
            desc="tokenizing",
        )
        report = batches.report
        if not report.kept:
            raise CorpusError(f"{name}: with max_length {max_length}, {report.describe(form.unit)}")
        record = {"fingerprint": made, "report": asdict(report)}
        (temporary / REPORT_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return StoredCorpus(directory)


def settings_fingerprint(tokenizer: PreTrainedTokenizerBase, encoder: Encoder, max_length: int) -> str:
    """Hashes everything that the tokens depend on, except the text."""
    reader: Any = plain_text(tokenizer)
    if reader.is_fast:
        state = json.loads(reader.backend_tokenizer.to_str())
        # Settings of earlier calls stay in the tokenizer, but do not affect this one.
        del state["padding"], state["truncation"]
    else:
        with TemporaryDirectory() as directory:
            state = [Hasher.hash(Path(file).read_bytes()) for file in reader.save_vocabulary(directory)]
    settings = [encoder.name, encoder.columns, max_length, reader.split_special_tokens, state, *encoder.settings]
    return fingerprint_settings([LAYOUT, *settings])


class _Batches:
    """Encodes batches of text without the rows that are empty or too long, and counts these."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, encoder: Encoder, schema: pa.Schema, max_length: int, rows: int
    ) -> None:
        self._tokenizer, self._encoder, self._schema = tokenizer, encoder, schema
        self._max_length, self._rows = max_length, rows
        self._max_characters = _max_characters(tokenizer, max_length)
        self._open: list[int] = []
        self._read = self._kept = self._empty = 0

    @property
    def report(self) -> PreparationReport:
        """The counts so far."""
        return PreparationReport(self._read, self._kept, self._empty, self._read - self._kept - self._empty)

    def __call__(self, batch: pa.Table, indices: Sequence[int]) -> pa.Table:
        """Returns the columns of ids."""
        form = self._encoder.form
        if form.packed:
            kept = self._packed(batch, is_last=indices[-1] == self._rows - 1)
            self._read += len(kept)
        else:
            required = (batch[column.name] for column in form.columns if not column.optional)
            full = _filtered(batch, (pc.invert(_is_blank(texts)) for texts in required))
            # Tokenizing a single word of 10 MB takes seconds and gigabytes.
            lengths = (pc.utf8_length(full[name]) for name in form.names if not form.in_blocks)
            short = _filtered(full, (pc.less_equal(length, self._max_characters) for length in lengths))
            rows = self._encoded(short)
            counts = map(pc.list_value_length, rows.columns)
            kept = _filtered(rows, (pc.less_equal(count, self._max_length) for count in counts))
            self._read += len(batch) + len(rows) - len(short)
            self._empty += len(batch) - len(full)
        self._kept += len(kept)
        return kept

    def _encoded(self, texts: pa.Table) -> pa.Table:
        if not len(texts):
            return self._schema.empty_table()
        ids = self._encoder.encode(texts.to_pydict(), self._tokenizer)
        return pa.table({column: ids[column] for column in self._encoder.columns}, self._schema)

    def _packed(self, texts: pa.Table, *, is_last: bool) -> pa.Table:
        """Returns the blocks that are full after some more pieces, each starting with the last id of the one before.

        So all ids of a text but the first are predicted exactly once. An empty piece ends the text before it.
        """
        blocks: list[list[int]] = []
        (name,), (column,), length = self._encoder.form.names, self._encoder.columns, self._max_length
        pieces = texts.to_pydict()
        ids_of_pieces = self._encoder.encode(pieces, self._tokenizer)[column]
        for piece, ids in [*zip(pieces[name], ids_of_pieces, strict=True), *[("", [])] * is_last]:
            if not piece:
                blocks += [self._open] if len(self._open) > 1 else []
                self._open = []
            self._open += ids
            starts = range(0, len(self._open) - length, length - 1)
            blocks += [self._open[start : start + length] for start in starts]
            del self._open[: len(starts) * (length - 1)]
        return pa.table([blocks], self._schema)


def _is_blank(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)


def _filtered(table: pa.Table, conditions: Iterable[pa.ChunkedArray]) -> pa.Table:
    """Returns the rows that satisfy all conditions."""
    found = list(conditions)
    return table.filter(reduce(pc.and_, found)) if found else table


def _max_characters(tokenizer: PreTrainedTokenizerBase, max_length: int) -> float:
    """Returns the maximum number of characters that `max_length` tokens can hold: longer texts need not be tokenized.

    Other tokenizers may skip characters, so no limit is known.
    """
    own = isinstance(tokenizer, VanillaTransformerTokenizer) and not tokenizer.extra_special_tokens
    return max_length * max(map(len, tokenizer.get_vocab())) if own else math.inf
