"""Text from files, directories, the Hub and the package itself, as a dataset whose rows know their lines."""

import functools
import glob
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, Features, Value
from datasets.info import SupervisedKeysData

from vanilla_transformer.atomic_files import atomic_replace
from vanilla_transformer.data.cmudict import dictionary_path, read_cmudict
from vanilla_transformer.data.sources import (
    FILE_SUFFIXES,
    LINE,
    PAIRS,
    TRANSLATION,
    Column,
    CorpusSpec,
    NumberedRows,
    TextForm,
    Wanted,
    choose_columns,
    one_corpus,
    split_off,
    table_suffix,
)
from vanilla_transformer.data.table_files import read_conll, read_table
from vanilla_transformer.data.text_lines import check_first_line, is_markup, read_lines, read_pieces, without_suffix
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
    corpus, directory = one_corpus(source), Path(cache_dir or _scratch().name)
    wanted = _named_columns(corpus, form)
    opened = _open(corpus, wanted, form)
    if opened is None:
        names, text = _loaded(corpus, wanted, form, directory)
    else:
        names, rows = opened
        text = _written(rows, corpus, wanted, form, directory)
    if not len(text):
        raise CorpusError(f"there are no {form.unit} in {corpus}")
    text.info.description = str(corpus)
    sides = [(name or "").removeprefix(TRANSLATION) for name in names] if form.parallel else []
    text.info.supervised_keys = SupervisedKeysData(*sides)
    return text


def corpus_languages(corpus: Dataset) -> tuple[str | None, str | None]:
    """Returns the two languages of a corpus by its file suffixes or column names, None if unknown."""
    source, target = (name if _LANGUAGE.fullmatch(name or "") else None for name in corpus_sides(corpus))
    return source, target


def corpus_sides(corpus: Dataset) -> tuple[str | None, str | None]:
    """Returns the file suffixes or column names of the two sides of a corpus, empty or None if unknown."""
    sides = corpus.info.supervised_keys or SupervisedKeysData()
    return sides.input, sides.output


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="vanilla-transformer-", ignore_cleanup_errors=True)


def _named_columns(corpus: CorpusSpec, form: TextForm) -> Wanted:
    """Returns the names that the user gives to the columns of a form; refuses names of other columns."""
    known = [column.setting for column in form.columns]
    for setting in corpus.columns:
        if setting not in known:
            raise CorpusError(f"{corpus}: {form.unit} have no {setting}, but {' and '.join(known)}")
    return tuple(map(corpus.columns.get, known))


def _open(corpus: CorpusSpec, wanted: Wanted, form: TextForm) -> tuple[Wanted, NumberedRows] | None:
    """Returns the names or languages of the columns of files, if known, and their rows; None for a dataset."""
    paths, path = corpus.parts, corpus.parts[0]
    suffix, built_in, is_lines = table_suffix(path), corpus.is_built_in and form.parallel, corpus.is_lines(form)
    if len(paths) > 1 + form.parallel or (len(paths) == 2 and any(map(table_suffix, paths))):
        files = "two line-aligned text files or " if form.parallel else ""
        raise CorpusError(f"{corpus}: {form.unit} come from {files}one source; separate several corpora with +")
    if form.packed and not is_lines:
        raise CorpusError(f"{corpus}: only plain text files can be packed: leave documents out, or give its text")
    if (built_in or is_lines) and corpus.columns:
        raise CorpusError(f"{corpus} has no named columns: leave the names out")
    if built_in:
        return ("en", None), enumerate(read_cmudict(path.partition(":")[2]), start=1)
    if is_lines:
        single = read_pieces if form.packed else read_lines
        for one in paths:
            if not form.packed and os.path.isfile(one) and is_markup(next(read_lines(one), "")):
                raise CorpusError(f"{one} contains markup such as XML, which would be read as text: extract its text")
        rows = _aligned_lines(*paths) if len(paths) == 2 else zip(single(path))
        suffixes = (Path(without_suffix(path).removesuffix(".txt")).suffix[1:] for path in paths)
        return tuple(suffixes), enumerate(rows, start=1)
    if form.tagged and suffix not in (None, ".tsv"):
        raise CorpusError(
            f"{path}: {form.unit} come from files of CoNLL columns, with a word and its tag on each line, not from "
            f"{suffix} files"
        )
    if form.tagged:
        return wanted, read_conll(path, wanted)
    if suffix not in (None, ".parquet"):
        return read_table(path, suffix, wanted, form)
    file, _ = split_off(path)
    if suffix is None and os.path.exists(file) and not os.path.isdir(file):
        others = "; plain text needs two line-aligned files, one for each side" if form.parallel else ""
        raise CorpusError(f"{path} is not a table that can be read ({', '.join(FILE_SUFFIXES)}){others}")
    return None


def _written(rows: NumberedRows, corpus: CorpusSpec, wanted: Wanted, form: TextForm, directory: Path) -> Dataset:
    """Returns the rows of files from the directory, where they are written unless the same are already there."""
    schema = Features({LINE: Value("int64"), **{name: Value("string") for name in form.names}}).arrow_schema
    files = [dictionary_path()] if corpus.is_built_in else corpus.parts
    place = [list(map(os.path.abspath, corpus.parts)), *map(_stamp, files)]
    made = fingerprint_settings([place, wanted, form.names, form.packed])
    file = directory / f"{made}.arrow"
    # A pipe can be read only once, and its status does not depend on its contents.
    if not file.is_file() or not all(map(os.path.isfile, files)):
        directory.mkdir(parents=True, exist_ok=True)
        batches = (zip(*batch, strict=True) for batch in iter(lambda: list(islice(rows, ROWS_PER_TABLE)), []))
        columns = ([numbers, *zip(*texts, strict=True)] for numbers, texts in batches)
        with atomic_replace(file) as temporary:
            write_table(temporary, schema, (pa.table(one, schema=schema) for one in columns))
    text = Dataset.from_file(str(file))
    text._fingerprint = made
    return text


def write_table(file: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Writes rows as a file from which `datasets` maps them into memory."""
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for table in tables:
            writer.write_table(table)


def _stamp(path: str) -> list[int]:
    """Returns what changes whenever a file does, without reading it."""
    status = os.stat(path)
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _aligned_lines(first_path: str, second_path: str) -> Iterator[tuple[str, str]]:
    for number, (source, target) in enumerate(zip_longest(read_lines(first_path), read_lines(second_path))):
        if source is None or target is None:
            shorter = first_path if source is None else second_path
            raise CorpusError(
                f"{first_path} and {second_path} must have equally many lines, but {shorter} ends after line {number}"
            )
        yield source, target


def as_text(dataset: Dataset, form: TextForm, names: Wanted, name: str) -> Dataset:
    """Returns columns of a dataset, one for each of a form's, as text without nulls; what is text stays on disk."""
    table = dataset.with_format("arrow")[:]
    texts = {
        column.name: _texts(table, dataset.features, its, column, name)
        for column, its in zip(form.columns, names, strict=True)
    }
    return Dataset(pa.table(texts), fingerprint=fingerprint_settings([dataset._fingerprint, names, form.names]))


def _texts(table: pa.Table, features: Features, its: str | None, column: Column, name: str) -> pa.ChunkedArray:
    """Returns a column as text, with an empty one for a null and for a column that is missing."""
    if its not in features:
        if not column.optional:
            raise CorpusError(f"{name}: no column {its!r}; there are {', '.join(map(repr, features))}")
        return pa.nulls(len(table), pa.string()).fill_null("")
    kind, values = getattr(features[its], "dtype", "lists"), table[its]
    is_number = column.numbers and re.fullmatch(r"bool|u?int\d+|float\d+", kind)
    if kind not in ("string", "large_string", "string_view") and not is_number:
        raise CorpusError(f"{name}: column {its!r} holds {kind}, which is not text")
    if isinstance(features[its], ClassLabel):
        known = pc.if_else(pc.greater_equal(values, 0), values, None)  # -1 is a text without a label.
        values = pa.array(features[its].names).take(known.combine_chunks())
    return values.cast(pa.string()).fill_null("")


def _loaded(corpus: CorpusSpec, wanted: Wanted, form: TextForm, directory: Path) -> tuple[Wanted, Dataset]:
    """Returns the names of a dataset's columns for a form, and their text.

    Errors of the readers of `datasets` may be of any class; the first line of their cause is the most informative.
    """
    try:
        dataset = _load(corpus, directory)
        names = choose_columns(dataset.column_names, wanted, str(corpus), form)
        return names, as_text(dataset, form, names, str(corpus))
    except CorpusError:
        raise
    except Exception as error:
        reason = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]
        raise CorpusError(f"{corpus} cannot be loaded: {reason}") from error


def _load(corpus: CorpusSpec, directory: Path) -> Dataset:
    """Loads a dataset that was saved on this disk, or one by a builder of `datasets`.

    Columns in a column of columns have names like `translation.en`.
    """
    path, parts = split_off(corpus.parts[0])
    if any(Path(path, name).exists() for name in ("state.json", "dataset_dict.json")):
        dataset = datasets.load_from_disk(str(Path(path, *parts)))  # Each split has a folder.
    else:
        config, split = [None, None, *parts][-2:]
        dataset = datasets.load_dataset(**_arguments(path, config, directory), split=split)
    if isinstance(dataset, datasets.DatasetDict):
        if len(dataset) > 1:
            splits = ", ".join(f"{corpus}:{split}" for split in dataset)
            raise CorpusError(f"{corpus}: name one of its splits: {splits}")
        (dataset,) = dataset.values()
    return dataset.flatten()


def _arguments(path: str, config: str | None, directory: Path) -> dict[str, object]:
    """Returns what `datasets` loads a file, a directory or a Hub id by."""
    arguments: dict[str, object] = {"path": path, "name": config}
    if table_suffix(path) and not os.path.isdir(path):
        with open(path, "rb") as file:
            check_first_line(path, file.readline())
        if not pq.read_metadata(path).num_rows:
            raise CorpusError(f"{path} has no rows")
        arguments = {"path": "parquet", "data_files": glob.escape(path)}
    elif os.path.isdir(path) and glob.has_magic(os.path.realpath(path)):
        raise CorpusError(f"{path}: `datasets` would read *, ? and [ in its path as a pattern: rename it")
    if os.path.exists(path):
        arguments["cache_dir"] = str(directory / "datasets")
    if hasattr(datasets.load_dataset_builder(**arguments).config, "keep_default_na"):
        # The CSV reader takes the words "null" and "NA" for missing values, and "null" is a German word.
        arguments["keep_default_na"] = False
    return arguments


def fingerprint_settings(settings: object) -> str:
    """Returns the fingerprint of settings that JSON can hold. Some are stored: a change would invalidate those."""
    return hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()
