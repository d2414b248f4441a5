"""Preparation of a corpus: text becomes tokens once, which are kept on disk."""

import json
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from datasets import Dataset, IterableDataset
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast

from vanilla_transformer.atomic_files import atomic_write
from vanilla_transformer.data.columns import TextForm
from vanilla_transformer.data.row_hashes import RowHash, TextHash
from vanilla_transformer.data.text_streams import TextStream, stream_of
from vanilla_transformer.data.token_corpus import PreparationReport, PreparedCorpus, Rows, TokenFile, token_writer
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.fingerprints import fingerprint_settings
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer, cased
from vanilla_transformer.plain_text import plain_text

TOKENS_FILE = "tokens.arrow"
REPORT_FILE = "report.json"
# Version of the stored format; a new number makes all tokens again.
LAYOUT = 3


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
        self.report = PreparationReport.of(report)
        self.tokens, self.texts = report["tokens"], (report["text"],)
        self._file = TokenFile(directory / TOKENS_FILE)
        self.lengths = self._file.lengths()

    def __reduce__(self) -> tuple[type["StoredCorpus"], tuple[Path]]:
        # Another process maps the file again instead of receiving a copy.
        return StoredCorpus, (self.directory,)

    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> Rows:
        """Return the ids of the rows at `indices`, by column, as views of the file."""
        return self._file.rows(indices)


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
    if there is None or there["settings"] != settings or not stream.is_still(there["stamp"], there["text"]):
        name, unit, hidden = secrets.token_hex(8), f" {task.form.unit}", None if progress else True
        directory.mkdir(parents=True, exist_ok=True)
        bar = tqdm(total=stream.rows, desc="tokenizing", unit=unit, unit_scale=True, disable=hidden)
        with atomic_write(directory / TOKENS_FILE) as temporary, bar:
            made = write_token_file(stream.tables(), temporary, name, tokenizer, task, max_length, bar.update)
            refuse_nothing(stream.name, PreparationReport.of(made), task.form, max_length)
        _write_report(directory, {"id": name, **made, "settings": settings, "stamp": stream.stamp})
    elif stream.stamp is not None and there["stamp"] != stream.stamp:
        _write_report(directory, {**there, "stamp": stream.stamp})
    return StoredCorpus(directory)


def _what_is_there(directory: Path) -> dict[str, Any] | None:
    """Return the report of existing tokens if they are complete and match it, else None."""
    try:
        report = json.loads((directory / REPORT_FILE).read_text(encoding="utf-8"))
        counts = PreparationReport.of(report)
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
    return fingerprint_settings([LAYOUT, task.name, task.columns, max_length, special, backend, *task.settings])


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
    text, tokens, read, kept, empty = TextHash(), RowHash(), 0, 0, 0
    longest = _longest_text(tokenizer, max_length)
    packed = _PackedBlocks(max_length) if task.form.packed else None
    required = [number for number, column in enumerate(task.form.columns) if not column.optional]
    with token_writer(path, task.columns, task.ids(tokenizer), name, tokens) as write:
        for table in tables:
            text.update(table)
            texts = list(zip(*(table.column(column).to_pylist() for column in task.form.names), strict=True))
            if packed is not None:
                kept += write(packed.add(texts, _encoded(texts, tokenizer, task)))
            else:
                full = [row for row in texts if all(row[number].strip() for number in required)]
                fitting = full if task.form.in_blocks else [row for row in full if max(map(len, row)) <= longest]
                rows = _encoded(fitting, tokenizer, task)
                kept += write([row for row in rows if max(map(len, row)) <= max_length])
                read += table.num_rows + len(rows) - len(fitting)
                empty += table.num_rows - len(full)
            progress(table.num_rows)
        if packed is not None:
            kept += write(packed.add([("",)], [([],)]))
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
                blocks += [(self._open,)] if len(self._open) > 1 else []
                self._open = []
            self._open += its_ids
            starts = range(0, len(self._open) - self._most, self._most - 1)
            blocks += [(self._open[start : start + self._most],) for start in starts]
            del self._open[: len(starts) * (self._most - 1)]
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
    backend = reading_backend(tokenizer)
    normalizer = backend.normalizer
    if target:
        backend.normalizer = cased(normalizer)
    try:
        return [encoding.ids for encoding in backend.encode_batch_fast(texts)]
    finally:
        if target:
            backend.normalizer = normalizer


def reading_backend(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """Return the backend of a tokenizer, set to read plain text of any length."""
    tokenizer = plain_text(tokenizer)
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend
