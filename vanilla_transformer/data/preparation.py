"""A corpus in tokens: made once, kept on disk, read by position."""

import hashlib
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset, IterableDataset
from numpy.typing import NDArray
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast

from vanilla_transformer.data.lines import CorpusError
from vanilla_transformer.data.storage import written_beside
from vanilla_transformer.data.streams import PairStream, stream_of

TOKENS_FILE = "tokens.arrow"
REPORT_FILE = "report.json"
# Another number makes the tokens again, which a change of what is written here asks for.
LAYOUT = 2

Ids = NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class PreparationReport:
    """How many pairs a corpus had and what became of them."""

    read: int
    kept: int
    dropped_empty: int
    dropped_too_long: int

    @property
    def is_sound(self) -> bool:
        """Whether these are counts, and each pair is in one of them."""
        counts = self.kept, self.dropped_empty, self.dropped_too_long
        return all(type(count) is int and count >= 0 for count in counts) and self.read == sum(counts)

    def __str__(self) -> str:
        dropped = {"with an empty side": self.dropped_empty, "that are too long": self.dropped_too_long}
        reasons = [f"{count:,} {reason}" for reason, count in dropped.items() if count]
        return f"{self.kept:,} of {self.read:,} pairs" + (f", without {' and '.join(reasons)}" if reasons else "")


class PreparedCorpus(ABC):
    """Pairs of token ids, by position.

    Attributes:
        source_lengths, target_lengths: Tokens of each pair's sides, ``</s>`` included.
        report: What was kept and what was dropped.
    """

    source_lengths: NDArray[np.int32]
    target_lengths: NDArray[np.int32]
    report: PreparationReport

    def __len__(self) -> int:
        return len(self.source_lengths)

    @abstractmethod
    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> list[tuple[Ids, Ids]]:
        """Return the source and target ids of the pairs at `indices`."""


class StoredCorpus(PreparedCorpus):
    """The pairs that `prepare_corpus` kept in `directory`, memory-mapped."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        counts = json.loads((directory / REPORT_FILE).read_text(encoding="utf-8"))
        self.report = PreparationReport(**{name: counts[name] for name in PreparationReport.__dataclass_fields__})
        reader = pa.ipc.open_file(pa.memory_map(str(directory / TOKENS_FILE)))
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        self._sources = [_Side.of(batch.column("source")) for batch in batches]
        self._targets = [_Side.of(batch.column("target")) for batch in batches]
        self._ends = np.cumsum([batch.num_rows for batch in batches])
        self.source_lengths = _lengths(self._sources)
        self.target_lengths = _lengths(self._targets)

    def __reduce__(self) -> tuple[type["StoredCorpus"], tuple[Path]]:
        # Another process maps the file again, instead of getting a copy of it.
        return StoredCorpus, (self.directory,)

    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> list[tuple[Ids, Ids]]:
        """Return the source and target ids of the pairs at `indices`, as views of the file."""
        positions = np.asarray(indices, dtype=np.int64)
        batches = np.searchsorted(self._ends, positions, side="right")
        offsets = positions - np.concatenate(([0], self._ends))[batches]
        return [
            (self._sources[batch].row(offset), self._targets[batch].row(offset))
            for batch, offset in zip(batches.tolist(), offsets.tolist(), strict=True)
        ]


def prepare_corpus(
    corpus: PairStream | Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int,
    directory: Path,
    progress: bool = True,
) -> StoredCorpus:
    """Turn text pairs into tokens in `directory`, or open those that are there from the same text and tokenizer.

    The text is read once. If the tokens are there it is read only where its stamp does not say that it is the same.

    Args:
        corpus: Pairs of text; a dataset, streamed or not, has them in the columns ``source`` and ``target``.
        tokenizer: Gives the ids, the end of sentence included.
        max_length: A pair with more tokens on a side is dropped, as is one with nothing but white space on a side.
        directory: Is made where it does not exist. Nothing in it is used before all of it is written.
        progress: Whether to show a bar on standard error.

    Raises:
        CorpusError: No pair is left.
    """
    directory = Path(directory)
    stream = corpus if isinstance(corpus, PairStream) else stream_of(corpus)
    settings = _settings(tokenizer, max_length)
    there = _what_is_there(directory)
    if there is None or there["settings"] != settings or not _is_same_text(stream, there):
        made = _write_tokens(stream, tokenizer, max_length, directory, progress)
        _write_report(directory, {**made, "settings": settings, "stamp": stream.stamp})
    elif stream.stamp is not None and there["stamp"] != stream.stamp:
        _write_report(directory, {**there, "stamp": stream.stamp})
    return StoredCorpus(directory)


class _Side(NamedTuple):
    """One side of neighbouring pairs: their ids one after the other, and where each pair's begin and end."""

    ids: Ids
    bounds: NDArray[np.int32]

    @classmethod
    def of(cls, column: pa.ListArray) -> "_Side":
        return cls(column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy(zero_copy_only=True))

    def row(self, offset: int) -> Ids:
        return self.ids[self.bounds[offset] : self.bounds[offset + 1]]


def _lengths(sides: Sequence[_Side]) -> NDArray[np.int32]:
    return np.concatenate([np.diff(side.bounds) for side in sides])


def _what_is_there(directory: Path) -> dict[str, Any] | None:
    """Return the report of tokens that are there, whole and its own, else None."""
    try:
        report = json.loads((directory / REPORT_FILE).read_text(encoding="utf-8"))
        counts = PreparationReport(**{name: report[name] for name in PreparationReport.__dataclass_fields__})
        with pa.memory_map(str(directory / TOKENS_FILE)) as file:
            reader = pa.ipc.open_file(file)
            metadata = reader.schema.metadata or {}
            rows = sum(reader.get_batch(index).num_rows for index in range(reader.num_record_batches))
        is_its_own = report["id"] == metadata.get(b"id", b"").decode() and counts.kept == rows
        is_sound = counts.is_sound and {"settings", "text", "stamp"} <= report.keys()
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return report if is_its_own and is_sound else None


def _write_report(directory: Path, report: dict[str, Any]) -> None:
    with written_beside(directory / REPORT_FILE) as temporary:
        temporary.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _settings(tokenizer: PreTrainedTokenizerFast, max_length: int) -> str:
    """Hash all but the text that the tokens depend on."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    # What earlier calls of the tokenizer asked for stays in it, and plays no part in this one.
    del backend["padding"], backend["truncation"]
    settings = [LAYOUT, max_length, tokenizer.split_special_tokens, backend]
    return hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()


def _is_same_text(stream: PairStream, report: dict[str, Any]) -> bool:
    if stream.stamp is not None and stream.stamp == report["stamp"]:
        return True
    text = _TextHash()
    for table in stream.tables():
        text.update(table)
    return text.hexdigest() == report["text"]


class _TextHash:
    """A hash of text pairs that depends on them alone, and not on the tables they come in."""

    def __init__(self) -> None:
        self._hashes = {name: hashlib.blake2b(digest_size=16) for name in ("source", "target", "lengths")}

    def update(self, table: pa.Table) -> None:
        """Go on with the pairs of a table."""
        lengths = []
        for name in ("source", "target"):
            column = pa.concat_arrays(table.column(name).cast(pa.large_string()).chunks)
            _, offsets, text = column.buffers()
            bounds = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
            lengths.append(np.diff(bounds))
            self._hashes[name].update(memoryview(text or b"")[bounds[0] : bounds[-1]])
        self._hashes["lengths"].update(np.stack(lengths, axis=1).data)

    def hexdigest(self) -> str:
        """Return the hash of all so far."""
        return "".join(part.hexdigest() for part in self._hashes.values())


def _write_tokens(
    stream: PairStream, tokenizer: PreTrainedTokenizerFast, max_length: int, directory: Path, progress: bool
) -> dict[str, Any]:
    """Write the ids of the pairs that are neither empty nor too long; return what the report says of the text."""
    # Half or a quarter of what 64 bits would take.
    kind = pa.list_(pa.uint16() if len(tokenizer) <= 1 << 16 else pa.uint32())
    name = secrets.token_hex(8)
    schema = pa.schema([("source", kind), ("target", kind)], metadata={"id": name})
    text, read, kept, empty = _TextHash(), 0, 0, 0
    with (
        written_beside(directory / TOKENS_FILE) as temporary,
        tqdm(
            total=stream.pairs, desc="tokenizing", unit=" pairs", unit_scale=True, disable=None if progress else True
        ) as bar,
    ):
        with pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for table in stream.tables():
                text.update(table)
                texts = zip(table.column("source").to_pylist(), table.column("target").to_pylist(), strict=True)
                full = [(source, target) for source, target in texts if source.strip() and target.strip()]
                short = _short_enough(_tokenized(full, tokenizer), max_length)
                if short:
                    columns = [_id_lists(ids, kind) for ids in zip(*short, strict=True)]
                    writer.write_batch(pa.record_batch(columns, schema))
                read += table.num_rows
                kept += len(short)
                empty += table.num_rows - len(full)
                bar.update(table.num_rows)
        report = PreparationReport(read, kept, empty, read - empty - kept)
        if not kept:
            raise CorpusError(
                f"no pair is left of {read:,}: {empty:,} have an empty side and {report.dropped_too_long:,} "
                f"have a side of more than {max_length} tokens"
            )
    return {"id": name, "text": text.hexdigest(), **asdict(report)}


def _tokenized(pairs: Sequence[tuple[str, str]], tokenizer: PreTrainedTokenizerFast) -> list[tuple[list[int], ...]]:
    if not pairs:
        return []
    # The tokenizer's own call makes Python objects of much that is not asked for, in twice the time of this. The
    # backend works on all cores already; processes on top of it only cost memory.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    sides = [[encoding.ids for encoding in backend.encode_batch_fast(side)] for side in zip(*pairs, strict=True)]
    return list(zip(*sides, strict=True))


def _short_enough(pairs: Iterable[tuple[list[int], ...]], max_length: int) -> list[tuple[list[int], ...]]:
    return [pair for pair in pairs if max(map(len, pair)) <= max_length]


def _id_lists(rows: Sequence[list[int]], kind: pa.ListType) -> pa.ListArray:
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    ids = np.fromiter(chain.from_iterable(rows), kind.value_type.to_pandas_dtype(), count=offsets[-1])
    return pa.ListArray.from_arrays(offsets, ids, type=kind)
