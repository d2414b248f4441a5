"""Text from files, directories, the Hub and the package itself, as a dataset whose rows know their lines."""

import functools
import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, Features, Value
from datasets.info import SupervisedKeysData

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.data.cmudict import dictionary_path, read_cmudict
from vanilla_transformer.data.sources import (
    LINE,
    PAIRS,
    TRANSLATION,
    CorpusLocation,
    CorpusSpec,
    NumberedRows,
    TextForm,
    Wanted,
    choose_columns,
    locate,
    one_corpus,
    table_suffix,
)
from vanilla_transformer.data.table_files import read_conll, read_table
from vanilla_transformer.data.text_lines import read_lines, read_pieces, without_suffix
from vanilla_transformer.errors import CorpusError

ROWS_PER_TABLE = 10_000
# Such as en, pt_BR or deu_Latn, but none of the three-letter endings of corpus files that are not languages.
_LANGUAGE = re.compile(r"(?!(bpe|dev|hyp|out|raw|ref|src|tgt|tok|trg|txt|val)$)[a-z]{2,3}([_-][A-Za-z0-9]+)*")


def read_corpus(
    source: CorpusSpec | Sequence[str], *, form: TextForm = PAIRS, cache_dir: str | os.PathLike[str] | None = None
) -> Dataset:
    """Reads text into a dataset with the columns of a form, kept on disk whatever its size.

    Rows of files also have their `line`; `row_place` tells where a row stands.

    Args:
        source: A corpus, or the words for one: two line-aligned text files; or one TSV, CSV, JSONL or Parquet file; or
            a directory or a Hub id that `datasets` can load, written NAME, NAME:SPLIT or NAME:CONFIG:SPLIT; or
            ``cmudict:train``, ``cmudict:dev`` or ``cmudict:test``. Text files and all tables but Parquet may be
            compressed (``.gz``, ``.bz2``, ``.xz``, ``.zst``). An existing path is taken literally, colons included.
            Its `source_column` and `target_column` name two columns, or two languages of the column ``translation``;
            by default they are that column's own languages in their order, else columns with names such as ``source``
            and ``tgt``, else the only two. Other forms do not accept the settings for pairs; they have their own
            (`TextForm`), and may be a plain text file with one text per line, or a file of CoNLL columns.
        form: The columns to read; pairs by default.
        cache_dir: Directory where the rows of files are kept, and reused while the files do not change. By default
            they are kept until the process ends. Data from the Hub is kept in the cache of `datasets`.
    """
    location, directory = locate(one_corpus(source), form), Path(cache_dir or _scratch().name)
    if location.kind == "dataset":
        corpus, names = _loaded(location, directory)
    else:
        names, rows = _open(location)
        corpus = _written(rows, location, directory)
    if not len(corpus):
        raise CorpusError(f"there are no {form.unit} in {location}")
    corpus.info.description = str(location)
    sides = [(name or "").removeprefix(TRANSLATION) for name in names] if form.parallel else []
    corpus.info.supervised_keys = SupervisedKeysData(*sides)
    return corpus


def corpus_languages(corpus: Dataset) -> tuple[str | None, str | None]:
    """Returns the two languages of a corpus by its file suffixes or column names, None if unknown."""
    sides = corpus.info.supervised_keys or SupervisedKeysData()
    source, target = (name if _LANGUAGE.fullmatch(name) else None for name in (sides.input, sides.output))
    return source, target


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="vanilla-transformer-", ignore_cleanup_errors=True)


def _written(rows: NumberedRows, location: CorpusLocation, directory: Path) -> Dataset:
    """Returns the rows of files from the directory, where they are written unless the same are already there."""
    form = location.form
    features = Features({LINE: Value("int64"), **{name: Value("string") for name in form.names}})
    paths = [dictionary_path()] if location.kind == "built-in" else list(location.paths)
    choice = [list(map(os.path.abspath, paths)), location.wanted, [*form.names, form.packed, location.split]]
    place = directory / fingerprint_settings(choice)
    made = fingerprint_settings([choice, *map(_stamp, paths)])
    file = place / f"{made}.arrow"
    # A pipe can be read only once, and its status does not depend on its contents.
    if not file.is_file() or not all(map(os.path.isfile, paths)):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        with (
            atomic_directory(place, "text") as temporary,
            pa.OSFile(str(temporary / file.name), "wb") as sink,
            pa.ipc.new_stream(sink, features.arrow_schema) as writer,
        ):
            while batch := list(islice(rows, ROWS_PER_TABLE)):
                numbers, texts = zip(*batch, strict=True)
                writer.write_table(pa.table([numbers, *zip(*texts, strict=True)], schema=features.arrow_schema))
    corpus = Dataset.from_file(str(file))
    corpus._fingerprint = made
    return corpus


def _stamp(path: str) -> list[int]:
    """Returns what changes whenever a file does, without reading it."""
    status = os.stat(path)
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _open(location: CorpusLocation) -> tuple[Wanted, NumberedRows]:
    """Returns the names or languages of the columns of files, if known, and their rows."""
    paths, form = location.paths, location.form
    if location.kind == "built-in":
        return ("en", None), enumerate(read_cmudict(location.split or ""), start=1)
    if location.kind == "table":
        if form.tagged:
            return location.wanted, read_conll(paths[0], location.wanted)
        return read_table(paths[0], table_suffix(paths[0]) or "", location.wanted, form)
    if form.packed:
        return (None,), enumerate(((piece,) for piece in read_pieces(paths[0])), start=1)
    rows = _aligned_lines(*paths) if len(paths) == 2 else ((line,) for line in read_lines(paths[0]))
    suffixes = (Path(without_suffix(path).removesuffix(".txt")).suffix[1:] for path in paths)
    return tuple(suffixes), enumerate(rows, start=1)


def _aligned_lines(first_path: str, second_path: str) -> Iterator[tuple[str, str]]:
    for number, (source, target) in enumerate(zip_longest(read_lines(first_path), read_lines(second_path))):
        if source is None or target is None:
            shorter = first_path if source is None else second_path
            raise CorpusError(
                f"{first_path} and {second_path} must have equally many lines, but {shorter} ends after line {number}"
            )
        yield source, target


def as_text(dataset: Dataset, form: TextForm, names: Wanted, name: str, directory: Path) -> Dataset:
    """Returns columns of a dataset, by default those with the form's names, as text without nulls.

    What is not yet text is written to the directory.
    """
    dataset = dataset.with_format(None) if dataset.format["type"] else dataset
    chosen = list(zip(form.columns, names, strict=True))
    features = dataset.features
    for column, its in chosen:
        if its not in features and not column.optional:
            raise CorpusError(f"{name}: no column {its!r}; there are {', '.join(map(repr, features))}")
        kind = getattr(features[its], "dtype", "lists") if its in features else None
        is_number = column.numbers and re.fullmatch(r"bool|u?int\d+|float\d+", str(kind))
        if kind not in (None, "string", "large_string", "string_view") and not is_number:
            raise CorpusError(f"{name}: column {its!r} holds {kind}, which is not text")
    if all(its in features and features[its] == Value("string") for _, its in chosen) and not any(
        dataset.data.column(its).null_count for _, its in chosen
    ):
        renamed = {its: column.name for column, its in chosen if its != column.name}
        return dataset.select_columns([its for _, its in chosen]).rename_columns(renamed)
    classes = {its: one.names for its, one in features.items() if isinstance(one, ClassLabel)}

    def texts(table: pa.Table) -> pa.Table:
        return pa.table({column.name: _texts(table, its, classes.get(its)) for column, its in chosen})

    made = fingerprint_settings([dataset._fingerprint, names, form.names])
    directory.mkdir(parents=True, exist_ok=True)
    return (
        dataset.with_format("arrow")
        .map(
            texts,
            batched=True,
            remove_columns=dataset.column_names,
            features=Features({column: Value("string") for column in form.names}),
            new_fingerprint=made,
            cache_file_name=str(directory / f"{made}.arrow"),
        )
        .with_format(None)
    )


def _texts(table: pa.Table, name: str | None, classes: list[str] | None) -> pa.Array:
    """Returns a column as text, with an empty one for a null and for a column that is missing."""
    if name not in table.column_names:
        return pa.array([""] * table.num_rows, pa.string())
    values = table.column(name)
    if classes is not None:
        known = pc.if_else(pc.greater_equal(values, 0), values, None)  # -1 is a text without a label.
        values = pa.array(classes).take(known.combine_chunks())
    return pc.fill_null(values.cast(pa.string()), "")


def _loaded(location: CorpusLocation, directory: Path) -> tuple[Dataset, Wanted]:
    """Returns the columns of a dataset as text, and their names in it.

    Errors of the readers of `datasets` may be of any class; the first line of their cause is the most informative.
    """
    try:
        dataset, names = _load(location, directory)
        return as_text(dataset, location.form, names, str(location), directory), names
    except CorpusError:
        raise
    except Exception as error:
        reason = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]
        raise CorpusError(f"{location} cannot be loaded: {reason}") from error


def _load(location: CorpusLocation, directory: Path) -> tuple[Dataset, Wanted]:
    """Loads a dataset: one saved on this disk, or by a builder of `datasets`.

    Returns also the names of its columns for the form; those in a column of columns have a name like `translation.en`.
    """
    path = location.paths[0]
    is_saved = any(Path(path, name).exists() for name in ("state.json", "dataset_dict.json"))
    if is_saved:
        dataset = datasets.load_from_disk(path)
    else:
        dataset = datasets.load_dataset(**_arguments(location, directory), split=location.split)
    if isinstance(dataset, datasets.DatasetDict):
        split = location.split or (next(iter(dataset)) if len(dataset) == 1 else None)
        if split not in dataset:
            name = ":".join(filter(None, (path, location.config)))
            raise CorpusError(f"{location}: name one of its splits: {', '.join(f'{name}:{one}' for one in dataset)}")
        dataset = dataset[split]
    elif is_saved and location.split is not None:
        raise CorpusError(f"{location} has no splits: leave {location.split!r} out")
    dataset = dataset.flatten()
    return dataset, choose_columns(dataset.column_names, location.wanted, str(location), location.form)


def _arguments(location: CorpusLocation, directory: Path) -> dict[str, Any]:
    """Returns what `datasets` loads a location by."""
    path = location.paths[0]
    arguments: dict[str, Any] = {"path": path, "name": location.config}
    if os.path.isfile(path):
        arguments = {"path": "parquet", "data_files": glob.escape(path)}
    elif os.path.isdir(path) and glob.has_magic(os.path.realpath(path)):
        raise CorpusError(f"{location}: `datasets` would read *, ? and [ in its path as a pattern: rename it")
    if os.path.exists(path):
        arguments["cache_dir"] = str(directory / "datasets")
    if hasattr(datasets.load_dataset_builder(**arguments).config, "keep_default_na"):
        # The CSV reader takes the words "null" and "NA" for missing values, and "null" is a German word.
        arguments["keep_default_na"] = False
    return arguments


def fingerprint_settings(settings: object) -> str:
    """Returns the fingerprint of settings that JSON can hold. Some are stored: a change would invalidate those."""
    return hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()
