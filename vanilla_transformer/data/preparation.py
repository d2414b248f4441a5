"""A corpus in tokens: made once, kept on disk, read by position."""

import hashlib
import json
import math
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

from vanilla_transformer.atomic_files import written_beside
from vanilla_transformer.data.lines import CorpusError
from vanilla_transformer.data.streams import PairStream, stream_of
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer

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
        tokens: A hash of all ids in their order: another one whenever a model would learn from anything else.
        texts: A hash of the text that they are of, for each corpus of a mixture.
    """

    source_lengths: NDArray[np.int32]
    target_lengths: NDArray[np.int32]
    report: PreparationReport
    tokens: str
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.source_lengths)

    @abstractmethod
    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> list[tuple[Ids, Ids]]:
        """Return the source and target ids of the pairs at `indices`."""

    def of_epoch(self, epoch: int) -> "PreparedCorpus":
        """Return the pairs of an epoch: these, in each epoch, but for a mixture that draws some of them."""
        return self


class StoredCorpus(PreparedCorpus):
    """The pairs that `prepare_corpus` kept in `directory`, memory-mapped."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        report = json.loads((directory / REPORT_FILE).read_text(encoding="utf-8"))
        self.report = PreparationReport(**{name: report[name] for name in PreparationReport.__dataclass_fields__})
        self.tokens, self.texts = report["tokens"], (report["text"],)
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
    if there is None or there["settings"] != settings or not is_same_text(stream, there["stamp"], there["text"]):
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
        is_sound = counts.is_sound and {"settings", "text", "tokens", "stamp"} <= report.keys()
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


def is_same_text(stream: PairStream, stamp: str | None, text: str) -> bool:
    """Tell whether a stream gives the text of that hash, which it was known to do when it had that stamp."""
    return (stream.stamp is not None and stream.stamp == stamp) or text_hash(stream) == text


def text_hash(corpus: PairStream | Dataset) -> str:
    """Return the hash of the text of a corpus, which reads all of it."""
    stream, text = corpus if isinstance(corpus, PairStream) else stream_of(corpus), TextHash()
    for table in stream.tables():
        text.update(table)
    return text.hexdigest()


def has_equal_sides(text: str) -> bool:
    """Tell by the hash of a text whether source and target are the same throughout."""
    third = len(text) // 3
    return text[:third] == text[third : 2 * third]


class PairHash:
    """A hash of pairs of sequences that depends on them alone, and not on the portions they come in."""

    def __init__(self) -> None:
        self._sides = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
        self._lengths = hashlib.blake2b(digest_size=16)

    def add(self, sides: Iterable[tuple[memoryview, NDArray[np.int64]]]) -> None:
        """Go on with pairs, given for each side as what its sequences hold and as the length of each."""
        lengths = []
        for hashed, (content, counts) in zip(self._sides, sides, strict=True):
            hashed.update(content)
            lengths.append(counts)
        self._lengths.update(np.stack(lengths, axis=1).data)

    def hexdigest(self) -> str:
        """Return the hash of all so far: those of the two sides, then that of the lengths."""
        return "".join(part.hexdigest() for part in (*self._sides, self._lengths))


class TextHash(PairHash):
    """A hash of text pairs, whatever tables they come in."""

    def update(self, table: pa.Table) -> None:
        """Go on with the pairs of a table."""
        sides = []
        for name in ("source", "target"):
            column = pa.concat_arrays(table.column(name).cast(pa.large_string()).chunks)
            _, offsets, text = column.buffers()
            bounds = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
            sides.append((memoryview(text or b"")[bounds[0] : bounds[-1]], np.diff(bounds)))
        self.add(sides)


def _write_tokens(
    stream: PairStream, tokenizer: PreTrainedTokenizerFast, max_length: int, directory: Path, progress: bool
) -> dict[str, Any]:
    """Write the ids of the pairs that are neither empty nor too long; return what the report says of the text."""
    # Half or a quarter of what 64 bits would take.
    kind = pa.list_(pa.uint16() if len(tokenizer) <= 1 << 16 else pa.uint32())
    name = secrets.token_hex(8)
    schema = pa.schema([("source", kind), ("target", kind)], metadata={"id": name})
    text, tokens, read, kept, empty = TextHash(), PairHash(), 0, 0, 0
    longest = _longest_text(tokenizer, max_length)
    directory.mkdir(parents=True, exist_ok=True)
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
                fitting = [pair for pair in full if max(map(len, pair)) <= longest]
                short = _short_enough(_tokenized(fitting, tokenizer), max_length)
                if short:
                    columns = [_id_lists(ids, kind) for ids in zip(*short, strict=True)]
                    writer.write_batch(pa.record_batch(columns, schema))
                    sides = map(_Side.of, columns)
                    tokens.add((side.ids.data, np.diff(side.bounds).astype(np.int64)) for side in sides)
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
    return {"id": name, "text": text.hexdigest(), "tokens": tokens.hexdigest(), **asdict(report)}


def _longest_text(tokenizer: PreTrainedTokenizerFast, max_length: int) -> float:
    """Return how many characters `max_length` tokens can hold at most: what is longer need not be tokenized.

    A text of one word of 10 MB takes seconds and gigabytes. Of other tokenizers it is not known what they pass over.
    """
    own = isinstance(tokenizer, VanillaTransformerTokenizer) and not tokenizer.extra_special_tokens
    return max_length * max(map(len, tokenizer.get_vocab())) if own else math.inf


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
