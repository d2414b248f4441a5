"""Text from files, directories, the Hub and the package itself, as a dataset or a stream."""

import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, DatasetBuilder

from vanilla_transformer.atomic_files import atomic_write, has_no_room
from vanilla_transformer.data.cmudict import read_cmudict
from vanilla_transformer.data.columns import PAIRS, Columns, RowTable, TextForm, refuse_twins
from vanilla_transformer.data.sources import (
    CorpusLocation,
    CorpusSpec,
    locate,
    may_have_columns,
    parse_corpus,
    table_suffix,
)
from vanilla_transformer.data.table_files import READERS
from vanilla_transformer.data.tables import read_text
from vanilla_transformer.data.text_lines import read_lines
from vanilla_transformer.data.text_streams import TextStream, find_columns, row_tables, stream_of, text_schema
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.network import hub_or_cache

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
            names; without one, columns are named by number. Other forms do not accept the settings for pairs; they
            have their own (`TextForm`), and may be a plain text file with one text per line, or a file of CoNLL
            columns.
        form: The columns to read; pairs by default.
        cache_dir: Directory where the rows are kept as Arrow, and reused while the files do not change. By default
            they are kept until the process ends. Data from the Hub is kept in the cache of `datasets`.

    Raises:
        CorpusError: Nothing can be read, or a line is invalid; the message names the file and the line.
    """
    location, directory = locate(_spec(source), form), _directory(cache_dir)
    if location.kind != "dataset":
        return _kept_on_disk(_stream_of_files(location), location, directory)
    loaded = _load(location, directory)
    return _mapped(loaded, form) or _kept_on_disk(_stream_of_dataset(loaded, location, directory), location, directory)


def open_corpus(
    source: CorpusSpec | Sequence[str], *, form: TextForm = PAIRS, cache_dir: str | os.PathLike[str] | None = None
) -> TextStream:
    """Open text to be read from start to end, in little memory and without a copy on disk.

    Takes the same arguments as `read_corpus`. Files are always read in place.
    """
    location = locate(_spec(source), form)
    for path in location.paths:
        # Such as from `<(zcat text.gz)`: it can be read only once.
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise CorpusError(f"{path} is a pipe or a device, but training data is read more than once: name a file")
    if location.kind == "dataset":
        directory = _directory(cache_dir)
        return _stream_of_dataset(_load(location, directory), location, directory)
    return _stream_of_files(location)


def corpus_languages(
    source: CorpusSpec | Sequence[str], *, cache_dir: str | os.PathLike[str] | None = None
) -> tuple[str | None, str | None]:
    """Return the two languages of a corpus by its file suffixes or column names, None if unknown.

    Takes the same arguments as `read_corpus`, and reads no more of a file than its first line.
    """
    location = locate(_spec(source))
    if location.kind == "dataset":
        names = _load(location, _directory(cache_dir)).columns.names
    else:
        names = _open_table(location).names
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
        if location.kind == "table":
            next(_open_table(location).rows, None)
    except CorpusError:
        return False
    return True


def _place(location: CorpusLocation, row: int) -> str:
    """Return the file and line of a row, or its number if no file can be read again."""
    if location.kind in ("dataset", "text") or not all(map(os.path.isfile, location.paths)):
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
    path = location.paths[0]
    if location.kind == "lines":
        return read_text(location.paths, location.form)
    if location.form.files is not None:
        return location.form.files.read(path, location.wanted)
    if location.kind == "text":
        return read_cmudict(location.split or "")
    return READERS[table_suffix(path) or ""](path, location.wanted, location.form)


def _stamp(location: CorpusLocation) -> str | None:
    """Return a stamp that changes whenever a file or the wanted columns change, without reading the files."""
    if location.kind == "text":
        return None
    stamps = []
    for path in location.paths:
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


class _Loaded(NamedTuple):
    """A dataset, the columns of it that a form is read from, and a stamp that changes if the text may have changed."""

    dataset: Dataset
    columns: Columns
    stamp: str | None


def _load(location: CorpusLocation, directory: Path) -> _Loaded:
    """Load a dataset: from the Hub in the cache of `datasets`, from local files in `directory`."""
    with _said_in_one_sentence(location, directory):
        dataset, stamp = _dataset(location, directory)
        columns = find_columns(dataset, location.wanted, str(location), location.form)
    if not len(dataset):
        raise CorpusError(f"there are no {location.form.unit} in {location}")
    return _Loaded(dataset, columns, stamp)


def _stream_of_dataset(loaded: _Loaded, location: CorpusLocation, directory: Path) -> TextStream:
    """Return the rows as a stream, which says in one sentence what it cannot read."""
    stream = stream_of(loaded.dataset, str(location), loaded.stamp, location.form, loaded.columns)

    def tables() -> Iterator[pa.Table]:
        with _said_in_one_sentence(location, directory):
            yield from stream.tables()

    return replace(stream, tables=tables)


def _mapped(loaded: _Loaded, form: TextForm) -> Dataset | None:
    """Return the rows as they are on this disk; None if some of them are not text."""
    dataset, (names, parent) = loaded.dataset, (loaded.columns.names, loaded.columns.parent)
    if None in names:
        return None
    if parent is not None:
        dataset, names = dataset.select_columns([parent]).flatten(), tuple(f"{parent}.{name}" for name in names)
    if any(
        dataset.features[name] != datasets.Value("string") or dataset.data.column(name).null_count for name in names
    ):
        return None
    return dataset.select_columns(list(names)).rename_columns(dict(zip(names, form.names, strict=True)))


@contextmanager
def _said_in_one_sentence(location: CorpusLocation, directory: Path) -> Iterator[None]:
    """Turn errors of the readers of `datasets`, which may be of any class, into a CorpusError.

    The first line of an error's cause is the most informative.
    """
    cache = _cache(location, directory) or datasets.config.HF_CACHE_HOME
    problem, is_here = None, os.path.exists(location.paths[0])
    try:
        with nullcontext() if is_here else hub_or_cache() as problem:
            yield
    except (CorpusError, GeneratorExit):
        raise
    except Exception as error:
        if problem and isinstance(error, OSError):
            raise CorpusError(f"there is no {location} here, and {problem}") from error
        if _is_out_of_room(error):
            raise CorpusError(
                f"{location} cannot be loaded because the disk of {cache} is full: free some space"
            ) from error
        reason = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]
        raise CorpusError(f"{location} cannot be loaded: {reason}") from error


def _is_out_of_room(error: BaseException | None) -> bool:
    """Tells whether an error came from a full disk; `datasets` checks the free space before it begins."""
    while error is not None:
        if has_no_room(error) or "Not enough disk space" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _cache(location: CorpusLocation, directory: Path) -> Path | None:
    """Return the cache for data that `datasets` reads from local files; None for its own cache."""
    return directory / "datasets" if os.path.exists(location.paths[0]) else None


def _load_saved(location: CorpusLocation) -> Dataset:
    loaded = datasets.load_from_disk(location.paths[0])
    if isinstance(loaded, datasets.DatasetDict):
        return loaded[_choose_split(location, list(loaded))]
    if location.split is not None:
        raise CorpusError(f"{location} has no splits: leave {location.split!r} out")
    return loaded


def _dataset(location: CorpusLocation, directory: Path) -> tuple[Dataset, str | None]:
    """Return a dataset, and a stamp that changes if its text may have changed."""
    if any(Path(location.paths[0], name).exists() for name in ("state.json", "dataset_dict.json")):
        return _load_saved(location), None  # Already on this disk as Arrow, which is mapped and never copied.
    builder = _builder(location, directory)
    builder.download_and_prepare()
    split = location.split or _choose_split(location, list(builder.info.splits or ()))
    dataset = builder.as_dataset(split=split)
    # A file's modification time, or its commit on the Hub.
    files = getattr(builder.config, "data_files", None) or {}
    origins = [[str(name), files[name], files[name].origin_metadata] for name in files]
    return dataset, json.dumps([builder.hash, builder.config_id, origins, split, location.wanted])


def _builder(location: CorpusLocation, directory: Path) -> DatasetBuilder:
    path = location.paths[0]
    arguments: dict[str, Any] = {"path": path, "name": location.config}
    if os.path.isfile(path):
        _check_parquet(path, location.form)
        arguments = {"path": "parquet", "data_files": path}
    cache = _cache(location, directory)
    if cache is not None:
        arguments["cache_dir"] = str(cache)
    builder = datasets.load_dataset_builder(**arguments)
    if hasattr(builder.config, "keep_default_na"):
        # The CSV reader takes the words "null" and "NA" for missing values, and "null" is a German word.
        builder = datasets.load_dataset_builder(**arguments, keep_default_na=False)
    return builder


def _check_parquet(path: str, form: TextForm) -> None:
    """Refuse files that `datasets` refuses too, but say that they are empty or which names are repeated."""
    if not os.path.getsize(path):
        raise CorpusError(f"{path} is empty")
    metadata = pq.read_metadata(path)
    if not metadata.num_rows:
        raise CorpusError(f"there are no {form.unit} in {path}")
    refuse_twins(names := metadata.schema.to_arrow_schema().names, names, path)


def _choose_split(location: CorpusLocation, splits: list[str]) -> str:
    if location.split in splits:
        return str(location.split)
    if location.split is None and len(splits) == 1:
        return splits[0]
    problem = "has several splits" if location.split is None else f"has no split {location.split!r}"
    name = ":".join(filter(None, (location.paths[0], location.config)))
    raise CorpusError(f"{location} {problem}: write {' or '.join(f'{name}:{split}' for split in splits)}")
