"""Preparation of a corpus: text becomes tokens once, which are kept on disk and read by position."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, List as ListOf, Value
from datasets.fingerprint import Hasher
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.data.batching import Lengths
from vanilla_transformer.data.corpus import as_text, fingerprint_settings, write_table
from vanilla_transformer.data.encoding import Ids, RowEncoder, Rows as Rows, Texts as Texts, reading_backend
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.model.tokenization_vanilla_transformer import plain_text
from vanilla_transformer.progress import progress_bar

# Version of the stored format; a new number makes all tokens again.
LAYOUT = 5
TOKENS_FILE = "tokens.arrow"
REPORT_FILE = "tokens.json"
ROWS_AT_ONCE = 1000
# Times that the pairs of a mixture are repeated on average: an epoch is planned in memory.
MAX_REPEATS = 1000
Piece = tuple[Ids, NDArray[np.integer]]
"""Ids of some rows of a column one after the other, and where each row begins and ends in them."""


@dataclass
class PreparationReport:
    """Counts of a corpus's rows, kept and dropped; a text in several blocks counts as several rows."""

    read: int = 0
    kept: int = 0
    dropped_empty: int = 0
    dropped_too_long: int = 0

    def describe(self, unit: str) -> str:
        """Returns the counts in words, with the name of the rows."""
        dropped = f"{self.dropped_empty:,} are empty and {self.dropped_too_long:,} too long"
        return f"{self.kept:,} of {self.read:,} {unit}" + (f"; {dropped}" if self.kept < self.read else "")


class PreparedCorpus:
    """Rows of token ids in named columns, by position.

    Args:
        columns: The pieces of each column, in memory-mapped files.

    Attributes:
        tokens: A hash of all ids in their order: it changes whenever a model would learn from other data.
        lengths: Number of ids in each row, including end tokens, by column in the order of the columns.
        starts: Position of the first row of each piece, and the number of all rows.
    """

    tokens: str
    lengths: Mapping[str, Lengths]

    def __init__(self, columns: Mapping[str, Sequence[Piece]], report: PreparationReport) -> None:
        self.columns, self.report = columns, report
        sizes = {name: [np.diff(bounds) for _, bounds in pieces] for name, pieces in columns.items()}
        self.lengths = {name: np.concatenate(of_pieces) for name, of_pieces in sizes.items()}
        self.starts = np.cumsum([0, *map(len, next(iter(sizes.values())))])

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
            report, self.fingerprint = PreparationReport(**record["report"]), str(record["fingerprint"])
            table = Dataset.from_file(str(directory / TOKENS_FILE)).data
            if not len(table) == report.kept > 0:
                raise ValueError(f"{len(table)} rows")
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise CorpusError(f"{directory} holds no tokenized corpus that can be read: prepare it again") from error
        columns = {
            name: [(piece.values.to_numpy(), piece.offsets.to_numpy()) for piece in table.column(name).chunks]
            for name in table.column_names
        }
        super().__init__(columns, report)
        self.tokens = self._hash()

    def _hash(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for name, pieces in self.columns.items():
            for ids, bounds in pieces:
                digest.update(ids[bounds[0] : bounds[-1]].data)
            digest.update(self.lengths[name].data)
        return digest.hexdigest()


class MixedCorpus(PreparedCorpus):
    """Prepared corpora one after the other, each repeated according to its weight.

    Nothing is left out: the corpus that is largest for its weight occurs once; the others repeat as a whole and, for
    the remainder, with pairs drawn evenly along them, anew for each epoch. The same corpora, weights, seed and epoch
    give the same pairs at the same positions. This equals `datasets.interleave_datasets` until all its datasets are
    exhausted, but with exact shares instead of drawn ones, and without a copy of the text.

    Args:
        weights: Share of each in an epoch, in any unit; without weights every pair occurs once.

    Attributes:
        shares: Number of pairs of each part in an epoch.
        pairs: Position of each pair of the epoch among those of the parts, one part after the other.
    """

    def __init__(
        self, parts: Sequence[StoredCorpus], weights: Sequence[float] | None = None, *, seed: int, epoch: int = 0
    ) -> None:
        self.parts, self._weights, self._seed, self._epoch = tuple(parts), weights, seed, epoch
        super().__init__(
            {name: [piece for part in parts for piece in part.columns[name]] for name in parts[0].columns},
            PreparationReport(*np.sum([astuple(part.report) for part in parts], axis=0).tolist()),
        )
        sizes = [len(part) for part in parts]
        self.shares = _shares(sizes, weights) if weights is not None else sizes
        self.pairs = np.concatenate(
            [
                start + _repeated(size, share, np.random.default_rng([seed, number, *([epoch] if epoch else [])]))
                for number, (start, size, share) in enumerate(
                    zip(np.cumsum([0, *sizes]), sizes, self.shares, strict=False)
                )
            ]
        )
        self.lengths = {name: lengths[self.pairs] for name, lengths in self.lengths.items()}
        self.tokens = fingerprint_settings([[part.tokens for part in parts], self.shares, seed])

    def of_epoch(self, epoch: int) -> PreparedCorpus:
        """Returns the pairs of an epoch; shares that are not a whole number of repetitions are drawn anew."""
        draws = any(share % len(part) for part, share in zip(self.parts, self.shares, strict=True))
        if epoch == self._epoch or not draws:
            return self
        return MixedCorpus(self.parts, self._weights, seed=self._seed, epoch=epoch)

    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> Rows:
        """Returns the ids of the rows at `indices`, by column."""
        return super().rows(self.pairs[np.asarray(indices, dtype=np.int64)])


def _shares(sizes: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Returns the number of pairs of each corpus in the smallest epoch that holds all pairs and has these weights."""
    pairs_per_weight = max(size / weight for size, weight in zip(sizes, weights, strict=True))
    if pairs_per_weight * sum(weights) > MAX_REPEATS * sum(sizes):
        raise CorpusError(f"an epoch would have {MAX_REPEATS:,} times as many pairs: give larger corpora more weight")
    return [max(size, round(weight * pairs_per_weight)) for size, weight in zip(sizes, weights, strict=True)]


def _repeated(size: int, share: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Returns `share` of the numbers below `size`, whose repetitions differ by at most one."""
    times, rest = divmod(share, size)
    return np.concatenate([np.tile(np.arange(size), times), np.sort(random.choice(size, rest, replace=False))])


def prepare_corpus(
    corpus: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    encoder: RowEncoder,
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
    (directory / REPORT_FILE).unlink(missing_ok=True)  # It would not be that of the next tokens.
    with atomic_directory(directory, "tokens", last=REPORT_FILE) as temporary:
        report = _Encoding(corpus, tokenizer, encoder, max_length).write(temporary / TOKENS_FILE)
        if not report.kept:
            raise CorpusError(f"{name}: with max_length {max_length}, {report.describe(form.unit)}")
        record = {"fingerprint": made, "report": asdict(report)}
        (temporary / REPORT_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return StoredCorpus(directory)


def settings_fingerprint(tokenizer: PreTrainedTokenizerBase, encoder: RowEncoder, max_length: int) -> str:
    """Hashes everything that the tokens depend on, except the text."""
    reader = plain_text(tokenizer)
    if reader.is_fast:
        state = [reading_backend(reader).to_str()]
    else:
        with TemporaryDirectory() as directory:
            state = [Hasher.hash(Path(file).read_bytes()) for file in reader.save_vocabulary(directory)]
    settings = [encoder.name, encoder.columns, max_length, reader.split_special_tokens, state, *encoder.settings]
    return fingerprint_settings([LAYOUT, *settings])


class _Encoding:
    """Encodes texts some rows at a time, and counts what is kept and dropped."""

    def __init__(
        self, corpus: Dataset, tokenizer: PreTrainedTokenizerBase, encoder: RowEncoder, max_length: int
    ) -> None:
        self.corpus, self.tokenizer, self.encoder, self.max_length = corpus, tokenizer, encoder, max_length
        self.report = PreparationReport()

    def write(self, file: Path) -> PreparationReport:
        """Writes the ids, and returns the counts."""
        schema = Features({column: ListOf(Value("uint32")) for column in self.encoder.columns}).arrow_schema
        write_table(file, schema, self._packed(schema) if self.encoder.form.packed else self._kept(schema))
        return self.report

    def _texts(self) -> Iterator[pa.Table]:
        with progress_bar(self.encoder.form.unit, total=len(self.corpus)) as bar:
            for texts in self.corpus.with_format("arrow").iter(ROWS_AT_ONCE):
                yield texts
                bar.update(len(texts))

    def _kept(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yields the ids of rows that are neither empty nor too long."""
        for texts in self._texts():
            required = (texts[column.name] for column in self.encoder.form.columns if not column.optional)
            full = _filtered(texts, (pc.not_equal(pc.utf8_trim_whitespace(side), "") for side in required))
            ids = self.encoder.encode(full.to_pydict(), self.tokenizer) if len(full) else {}
            rows = pa.table({column: ids.get(column, ()) for column in schema.names}, schema)
            kept = _filtered(rows, (pc.less_equal(pc.list_value_length(ids), self.max_length) for ids in rows.columns))
            self.report.read += len(texts) - len(full) + len(rows)
            self.report.dropped_empty += len(texts) - len(full)
            self.report.dropped_too_long += len(rows) - len(kept)
            self.report.kept += len(kept)
            yield kept

    def _packed(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yields the ids of continuous text in blocks, each of which begins with the last id of the one before.

        So all ids of a text but the first are predicted exactly once. An empty piece ends the text before it.
        """
        (name,), (column,), length, text = self.encoder.form.names, schema.names, self.max_length, list[int]()
        for pieces in chain((texts.to_pydict() for texts in self._texts()), [{name: [""]}]):
            blocks: list[list[int]] = []
            for piece, ids in zip(pieces[name], self.encoder.encode(pieces, self.tokenizer)[column], strict=True):
                if not piece:
                    blocks += [text] * (len(text) > 1)
                    text = []
                text += ids
                starts = range(0, len(text) - length, length - 1)
                blocks += [text[start : start + length] for start in starts]
                del text[: len(starts) * (length - 1)]
            self.report.read += len(blocks)
            self.report.kept += len(blocks)
            yield pa.table([blocks], schema)


def _filtered(table: pa.Table, conditions: Iterable[pa.ChunkedArray]) -> pa.Table:
    """Returns the rows that satisfy all conditions."""
    return table.filter(reduce(pc.and_, conditions))
