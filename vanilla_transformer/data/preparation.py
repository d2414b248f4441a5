"""A corpus in tokens: made once, kept on disk, read by position."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset
from numpy.typing import NDArray
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast

from vanilla_transformer.data.lines import CorpusError
from vanilla_transformer.data.storage import written_beside

TOKENS_FILE = "tokens.arrow"
REPORT_FILE = "report.json"
PAIRS_PER_BATCH = 10_000
# Part of every fingerprint. Another number makes the tokens again, which a change of what is written here asks for.
LAYOUT = 1

Ids = NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class PreparationReport:
    """How many pairs a corpus had and what became of them."""

    read: int
    kept: int
    dropped_empty: int
    dropped_too_long: int

    def __str__(self) -> str:
        dropped = {"with an empty side": self.dropped_empty, "that are too long": self.dropped_too_long}
        reasons = [f"{count:,} {reason}" for reason, count in dropped.items() if count]
        return f"{self.kept:,} of {self.read:,} pairs" + (f", without {' and '.join(reasons)}" if reasons else "")


class PreparedCorpus:
    """The token ids of the pairs that `prepare_corpus` kept in `directory`, memory-mapped.

    Attributes:
        source_lengths, target_lengths: Tokens of each pair's sides, ``</s>`` included.
        report: What was kept and what was dropped.
    """

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

    def __len__(self) -> int:
        return len(self.source_lengths)

    def __reduce__(self) -> tuple[type["PreparedCorpus"], tuple[Path]]:
        # Another process maps the file again, instead of getting a copy of it.
        return PreparedCorpus, (self.directory,)

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
    corpus: Dataset,
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int,
    directory: Path,
    progress: bool = True,
) -> PreparedCorpus:
    """Turn text pairs into tokens in `directory`, or open those that are there from the same text and tokenizer.

    Args:
        corpus: Pairs of text, with the columns ``source`` and ``target``.
        tokenizer: Gives the ids, the end of sentence included.
        max_length: A pair with more tokens on a side is dropped, as is one with nothing but white space on a side.
        directory: Is made where it does not exist. Nothing in it is used before all of it is written.
        progress: Whether to show a bar on standard error.

    Raises:
        CorpusError: No pair is left.
    """
    directory = Path(directory)
    fingerprint = _fingerprint(corpus, tokenizer, max_length)
    if not _is_prepared(directory, fingerprint):
        report = _write_tokens(corpus, tokenizer, max_length, directory, fingerprint, progress)
        with written_beside(directory / REPORT_FILE) as temporary:
            temporary.write_text(json.dumps({"fingerprint": fingerprint, **asdict(report)}, indent=2) + "\n")
    return PreparedCorpus(directory)


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


def _is_prepared(directory: Path, fingerprint: str) -> bool:
    """Tell whether both files are there, whole, and of this fingerprint."""
    try:
        report = json.loads((directory / REPORT_FILE).read_text(encoding="utf-8"))
        with pa.memory_map(str(directory / TOKENS_FILE)) as file:
            metadata = pa.ipc.open_file(file).schema.metadata or {}
    except (OSError, ValueError):
        return False
    return report.get("fingerprint") == fingerprint == metadata.get(b"fingerprint", b"").decode()


def _fingerprint(corpus: Dataset, tokenizer: PreTrainedTokenizerFast, max_length: int) -> str:
    """Hash all that the tokens depend on: the text itself, the tokenizer and the limit."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    # What earlier calls of the tokenizer asked for stays in it, and plays no part in this one.
    del backend["padding"], backend["truncation"]
    settings = [LAYOUT, max_length, getattr(tokenizer, "split_special_tokens", False), backend]
    texts, lengths = hashlib.blake2b(json.dumps(settings).encode(), digest_size=16), hashlib.blake2b(digest_size=16)
    for table in corpus.with_format("arrow").iter(PAIRS_PER_BATCH):
        for name in ("source", "target"):
            for chunk in table.column(name).cast(pa.large_string()).chunks:
                _, offsets, text = chunk.buffers()
                bounds = np.frombuffer(offsets, dtype=np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
                lengths.update(np.diff(bounds).data)
                texts.update(memoryview(text or b"")[bounds[0] : bounds[-1]])
    return (texts.digest() + lengths.digest()).hex()


def _write_tokens(
    corpus: Dataset,
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    directory: Path,
    fingerprint: str,
    progress: bool,
) -> PreparationReport:
    """Write the ids of the pairs that are neither empty nor too long, and count the others."""
    # Half or a quarter of what 64 bits would take.
    kind = pa.list_(pa.uint16() if len(tokenizer) <= 1 << 16 else pa.uint32())
    schema = pa.schema([("source", kind), ("target", kind)], metadata={"fingerprint": fingerprint})
    kept = empty = 0
    with (
        written_beside(directory / TOKENS_FILE) as temporary,
        tqdm(
            total=len(corpus), desc="tokenizing", unit=" pairs", unit_scale=True, disable=None if progress else True
        ) as bar,
    ):
        with pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for sources, targets in _text_batches(corpus):
                full = [(s, t) for s, t in zip(sources, targets, strict=True) if s.strip() and t.strip()]
                short = list(_short_enough(_tokenized(full, tokenizer), max_length))
                if short:
                    writer.write_batch(
                        pa.record_batch([pa.array(ids, type=kind) for ids in zip(*short, strict=True)], schema)
                    )
                kept += len(short)
                empty += len(sources) - len(full)
                bar.update(len(sources))
        report = PreparationReport(len(corpus), kept, empty, len(corpus) - empty - kept)
        if not kept:
            raise CorpusError(
                f"no pair is left of {len(corpus):,}: {empty:,} have an empty side and {report.dropped_too_long:,} "
                f"have a side of more than {max_length} tokens"
            )
    return report


def _text_batches(corpus: Dataset) -> Iterator[tuple[list[str], list[str]]]:
    for table in corpus.with_format("arrow").iter(PAIRS_PER_BATCH):
        yield table.column("source").to_pylist(), table.column("target").to_pylist()


def _tokenized(
    pairs: Sequence[tuple[str, str]], tokenizer: PreTrainedTokenizerFast
) -> Iterator[tuple[list[int], list[int]]]:
    if not pairs:
        return iter(())
    sources, targets = zip(*pairs, strict=True)
    # The library works on all cores already; processes on top of it only cost memory.
    encoded = tokenizer(
        list(sources),
        text_target=list(targets),
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    return zip(encoded["input_ids"], encoded["labels"], strict=True)


def _short_enough(
    pairs: Iterable[tuple[list[int], list[int]]], max_length: int
) -> Iterator[tuple[list[int], list[int]]]:
    return ((source, target) for source, target in pairs if max(len(source), len(target)) <= max_length)
