"""Text from files, directories, the Hub and the package itself, as a dataset or a stream."""

import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa
from datasets import Dataset

from vanilla_transformer import seams
from vanilla_transformer.atomic_files import atomic_write
from vanilla_transformer.compression import without_suffix
from vanilla_transformer.data import cmudict
from vanilla_transformer.data.columns import PAIRS, TextForm, Wanted
from vanilla_transformer.data.loaded_corpora import load
from vanilla_transformer.data.sources import (
    CorpusLocation,
    CorpusSpec,
    locate,
    may_have_columns,
    parse_corpus,
    table_suffix,
)
from vanilla_transformer.data.tables import TABLE_READERS, RowTable, read_conll, read_text
from vanilla_transformer.data.text_lines import CorpusError, read_lines
from vanilla_transformer.data.text_streams import TextStream, row_tables, text_schema

__all__ = [
    "CorpusError",
    "corpus_languages",
    "open_corpus",
    "read_corpus",
    "read_lines",
    "row_place",
    "with_columns_of",
]

# Such as en, pt_BR or deu_Latn, but none of the three-letter endings of corpus files that are not languages.
_LANGUAGE = re.compile(r"(?!(bpe|dev|hyp|out|raw|ref|src|tgt|tok|trg|txt|val)$)[a-z]{2,3}([_-][A-Za-z0-9]+)*")


def read_corpus(
    source: CorpusSpec | Sequence[str], *, form: TextForm = PAIRS, cache_dir: str | os.PathLike[str] | None = None
) -> Dataset:
    """Read text into a dataset with the columns of a form, kept on disk whatever its size.

    Args:
        source: A corpus, or the words for one: two line-aligned text files; or one TSV, CSV, JSONL or Parquet file; or
            a directory or a Hub id that `datasets` can load, written NAME, NAME:SPLIT or NAME:CONFIG:SPLIT; or
            ``cmudict:train``, ``cmudict:dev`` or ``cmudict:test``. Text files and all tables but Parquet may be
            compressed (``.gz``, ``.bz2``, ``.xz``, ``.zst``). An existing path is taken literally, colons included.
            Its `source_column` and `target_column` name two columns, or two languages of the column ``translation``;
            by default they are that column's own languages in their order, else columns with names such as ``source``
            and ``tgt``, else the only two. A TSV file has a header if columns are named, or if its first line has such
            names; without one, columns are named by number. With `streaming` only the pairs that `datasets` loads are
            kept, not the whole files. Other forms do not accept the settings for pairs; they have their own
            (`TextForm`), and may be a plain text file with one text per line, or a file of CoNLL columns.
        form: The columns to read; pairs by default.
        cache_dir: Directory where the rows are kept as Arrow, and reused while the files do not change. By default
            they are kept until the process ends. Data from the Hub is kept in the cache of `datasets`.

    Raises:
        CorpusError: Nothing can be read, or a line is invalid; the message names the file and the line.
    """
    corpus, directory = _spec(source), _directory(cache_dir)
    location = locate(corpus, form)
    if location.kind != "dataset":
        return _kept_on_disk(_stream_of_files(location), location, directory)
    loaded = load(location, directory, corpus.streaming)
    mapped = loaded.mapped()
    return _kept_on_disk(loaded.stream(), location, directory) if mapped is None else mapped


def open_corpus(
    source: CorpusSpec | Sequence[str], *, form: TextForm = PAIRS, cache_dir: str | os.PathLike[str] | None = None
) -> TextStream:
    """Open text to be read from start to end, in little memory and without a copy on disk.

    Takes the same arguments as `read_corpus`. With `streaming`, data loaded by `datasets` is fetched at each pass;
    otherwise it is downloaded once. Files are always read in place.
    """
    corpus = _spec(source)
    location = locate(corpus, form)
    for path in location.paths:
        # Such as from `<(zcat text.gz)`: it can be read only once.
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise CorpusError(f"{path} is a pipe or a device, but training data is read more than once: name a file")
    if location.kind == "dataset":
        return load(location, _directory(cache_dir), corpus.streaming).stream()
    return _stream_of_files(location)


def corpus_languages(
    source: CorpusSpec | Sequence[str], *, cache_dir: str | os.PathLike[str] | None = None
) -> tuple[str | None, str | None]:
    """Return the two languages of a corpus by its file suffixes or column names, None if unknown.

    Takes the same arguments as `read_corpus`, and reads no more of a file than its first line.
    """
    corpus = _spec(source)
    location = locate(corpus)
    if location.kind == "built-in":
        return "en", None
    if location.kind == "lines":
        names: Wanted = tuple(Path(without_suffix(path).removesuffix(".txt")).suffix[1:] for path in location.paths)
    elif location.kind == "dataset":
        names = load(location, _directory(cache_dir), corpus.streaming).columns.names
    else:
        columns = _open_table(location).columns
        names = columns.names if columns else (None, None)
    first, second = (name if name and _LANGUAGE.fullmatch(name) else None for name in names)
    return first, second


def row_place(source: CorpusSpec, form: TextForm, row: int) -> str:
    """Return the place of a corpus row, given its number from 0."""
    return _place(locate(source, form), row)


def with_columns_of(corpus: CorpusSpec, other: CorpusSpec, form: TextForm) -> CorpusSpec:
    """Return a table that names no columns with those named by another corpus, if it has them; its header wins."""
    named = {column.setting: getattr(other, column.setting) for column in form.columns}
    if not may_have_columns(corpus) or not any(named.values()):
        return corpus
    wanted = replace(corpus, **named)
    by_number = any(name.isdecimal() for name in named.values() if name) and not form.tagged
    tried = (corpus, wanted) if by_number else (wanted, corpus)
    return next((one for one in tried if _has_its_columns(one, form)), corpus)


def _has_its_columns(corpus: CorpusSpec, form: TextForm) -> bool:
    try:
        location = locate(corpus, form)
        if location.kind in ("table", "conll"):
            next(_open_table(location).rows, None)
    except CorpusError:
        return False
    return True


def _place(location: CorpusLocation, row: int) -> str:
    """Return the file and line of a row, or its number if no file can be read again."""
    if location.kind in ("dataset", "built-in") or not all(map(os.path.isfile, location.paths)):
        return f"{location}, row {row + 1:,}"
    number, _ = next(islice(_open_table(location).rows, row, None))
    return f"{location}, line {number:,}"


def _spec(source: CorpusSpec | Sequence[str]) -> CorpusSpec:
    if isinstance(source, CorpusSpec):
        return source
    return parse_corpus([source] if isinstance(source, str) else [os.fspath(part) for part in source])


def _stream_of_files(location: CorpusLocation) -> TextStream:
    def tables() -> Iterator[pa.Table]:
        return row_tables((row for _, row in _open_table(location).rows), location.form)

    return TextStream(str(location), tables, _stamp(location), form=location.form, place=partial(_place, location))


def _open_table(location: CorpusLocation) -> RowTable:
    if location.kind == "built-in":
        return RowTable(None, enumerate(cmudict.cmudict_pairs(location.split or ""), start=1))
    if location.kind == "lines":
        return read_text(location.paths, location.form)
    path = location.paths[0]
    if location.kind == "conll":
        return read_conll(path, location.wanted)
    suffix = table_suffix(path) or ""
    read = TABLE_READERS.get(suffix) or seams.load("file", suffix)
    return read(path, location.wanted, location.form)


def _stamp(location: CorpusLocation) -> str:
    """Return a stamp that changes whenever a file or the wanted columns change, without reading the files."""
    stamps = []
    for path in (cmudict.dictionary_path(),) if location.kind == "built-in" else location.paths:
        try:
            status = os.stat(path)
        except OSError as error:
            raise CorpusError(f"{path} does not exist or cannot be read ({error.strerror})") from error
        stamps.append([status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
    return json.dumps([stamps, location.split, location.wanted])


def _kept_on_disk(stream: TextStream, location: CorpusLocation, directory: Path) -> Dataset:
    """Return rows kept in the directory, writing them unless they are already there."""
    paths = [os.path.abspath(path) for path in location.paths]
    form = [location.form.names, *["packed"] * location.form.packed]
    identity = json.dumps([paths, location.config, location.split, location.wanted, *form])
    file = directory / f"pairs-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}.arrow"
    with suppress(OSError, pa.ArrowInvalid):  # There is none, or a truncated one.
        with pa.memory_map(str(file)) as there, pa.ipc.open_stream(there) as reader:
            stamp = (reader.schema.metadata or {}).get(b"stamp", b"").decode()
        if stamp and stamp == stream.stamp:
            return Dataset.from_file(str(file))
    schema, rows = text_schema(stream.form, {"stamp": stream.stamp or ""}), 0
    directory.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as temporary:
        with pa.OSFile(str(temporary), "wb") as written, pa.ipc.new_stream(written, schema) as writer:
            for table in stream.tables():
                writer.write_table(table.replace_schema_metadata(schema.metadata))
                rows += table.num_rows
        if not rows:
            raise CorpusError(f"there are no {stream.form.unit} in {stream.name}")
    return Dataset.from_file(str(file))


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="vanilla-transformer-", ignore_cleanup_errors=True)


def _directory(cache_dir: str | os.PathLike[str] | None) -> Path:
    return Path(cache_dir) if cache_dir is not None else Path(_scratch().name)
