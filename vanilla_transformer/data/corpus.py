"""Text pairs from files, directories, the Hub and the package itself, as one kind of dataset."""

import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vanilla_transformer.data import cmudict
from vanilla_transformer.data.lines import CorpusError, read_lines
from vanilla_transformer.data.storage import written_beside
from vanilla_transformer.data.tables import TABLE_READERS, Columns, Pair, PairTable, choose_columns

# `datasets` and `pyarrow` come with the extra [train]; who only translates reads lines and needs neither.
if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["CorpusError", "corpus_languages", "read_corpus", "read_lines"]

FILE_SUFFIXES = (*TABLE_READERS, ".parquet")
BUILT_IN = "cmudict"
ROWS_PER_BATCH = 4096
# Three letters that end the names of corpus files and are no language.
NOT_LANGUAGES = {"bpe", "dev", "hyp", "out", "raw", "ref", "src", "tgt", "tok", "trg", "txt", "val"}


def read_corpus(
    source: Sequence[str],
    *,
    source_column: str | None = None,
    target_column: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> "Dataset":
    """Read text pairs into a dataset with the columns ``source`` and ``target``, kept on disk whatever its size.

    Args:
        source: Two line-aligned text files; or one TSV, CSV, JSONL or Parquet file; or a directory or a Hub id that
            `datasets` can load, written NAME, NAME:SPLIT or NAME:CONFIG:SPLIT; or ``cmudict:train``, ``cmudict:dev``
            or ``cmudict:test``. Text files and tables but Parquet may be gzipped (``.gz``). A path that exists is
            taken as it stands, colons and all.
        source_column, target_column: Two columns, or two languages of the column ``translation``. Without them: that
            column's own languages in their order, else the columns ``source`` and ``target``, else the only two. A TSV
            file has a header if columns are named, or if its first line begins with ``source`` and ``target``.
        cache_dir: Where the pairs are kept as Arrow, to be used again while the files do not change. Without it they
            are kept until the process ends. What comes from the Hub is kept where `datasets` keeps it.

    Raises:
        CorpusError: Nothing can be read, or a line cannot; it names the file and the line.
    """
    place = _locate(source, (source_column, target_column))
    directory = Path(cache_dir) if cache_dir is not None else _scratch_directory()
    if place.kind == "built-in":
        return _in_memory(cmudict.cmudict_pairs(place.split or ""))
    if place.kind == "dataset":
        return _load(place, directory)[0]
    return _kept_on_disk(place, directory)


def corpus_languages(
    source: Sequence[str],
    *,
    source_column: str | None = None,
    target_column: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> tuple[str | None, str | None]:
    """Tell the two languages of a corpus by the suffixes of its files or the names of its columns, None where unknown.

    Takes what `read_corpus` takes, and of a file reads no more than the first line.
    """
    place = _locate(source, (source_column, target_column))
    if place.kind == "built-in":
        return "en", None
    if place.kind == "lines":
        first, second = (_language(_without_suffixes(path).suffix[1:]) for path in place.paths)
        return first, second
    if place.kind == "dataset":
        columns: Columns | None = _load(place, Path(cache_dir) if cache_dir is not None else _scratch_directory())[1]
    else:
        columns = _open_table(place).columns
    return (_language(columns.source), _language(columns.target)) if columns else (None, None)


@dataclass(frozen=True)
class _Place:
    """Where a corpus lies: ``lines`` (two files), ``table`` (one), ``dataset`` (for `datasets`) or ``built-in``."""

    kind: str
    paths: tuple[str, ...] = ()
    config: str | None = None
    split: str | None = None
    wanted: tuple[str | None, str | None] = (None, None)

    def __str__(self) -> str:
        return " and ".join(self.paths)


def _locate(source: Sequence[str], wanted: tuple[str | None, str | None]) -> _Place:
    sources = [source] if isinstance(source, str) else [os.fspath(part) for part in source]
    if len(sources) == 2:
        if any(_table_suffix(path) for path in sources):
            raise CorpusError(f"{' and '.join(sources)} are not two line-aligned text files: give one table at a time")
        place = _Place("lines", tuple(sources))
    elif len(sources) == 1:
        place = _locate_one(sources[0], wanted)
    else:
        raise CorpusError(f"a corpus is two line-aligned files or one other source, not {len(sources)}")
    if place.kind in ("lines", "built-in") and wanted != (None, None):
        raise CorpusError(f"{place} has no named columns: leave the names out")
    return place


def _locate_one(source: str, wanted: tuple[str | None, str | None]) -> _Place:
    path, parts = _split_off(source)
    if path == BUILT_IN and len(parts) < 2:
        return _Place("built-in", (path,), split=parts[0] if parts else None)
    suffix = _table_suffix(path)
    if not os.path.exists(path):
        if suffix or not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", path):
            raise CorpusError(f"{path} does not exist")
    elif not os.path.isdir(path):
        if parts:
            raise CorpusError(f"{path} is a file, it has no split {':'.join(parts)!r}")
        if suffix in TABLE_READERS:
            return _Place("table", (path,), wanted=wanted)
        if suffix is None:
            raise CorpusError(
                f"{path} is none of the tables that can be read ({', '.join(FILE_SUFFIXES)}); "
                "plain text needs two line-aligned files, one for each side"
            )
    if len(parts) > 2:
        raise CorpusError(f"{source}: write NAME, NAME:SPLIT or NAME:CONFIG:SPLIT")
    config = parts[0] if len(parts) == 2 else None
    return _Place("dataset", (path,), config=config, split=parts[-1] if parts else None, wanted=wanted)


def _split_off(source: str) -> tuple[str, list[str]]:
    """Split NAME:CONFIG:SPLIT, where an existing path wins over colons."""
    if os.path.exists(source):
        return source, []
    for parts in (1, 2):
        name, *rest = source.rsplit(":", parts)
        if len(rest) == parts and os.path.exists(name):
            return name, rest
    name, *rest = source.split(":")
    return name, rest


def _table_suffix(path: str) -> str | None:
    suffix = Path(path.removesuffix(".gz")).suffix.lower()
    return suffix if suffix in FILE_SUFFIXES else None


def _without_suffixes(path: str) -> Path:
    return Path(path.removesuffix(".gz").removesuffix(".txt"))


def _language(name: str) -> str | None:
    """Return the language that a file suffix or a column is named after (``en``, ``pt_BR``, ``deu_Latn``), if any."""
    if re.fullmatch(r"[a-z]{2,3}([_-][A-Za-z0-9]+)*", name) and name not in NOT_LANGUAGES:
        return name
    return None


def _open_table(place: _Place) -> PairTable:
    if place.kind == "lines":
        return PairTable(None, _aligned_lines(*place.paths))
    path = place.paths[0]
    return TABLE_READERS[_table_suffix(path) or ""](path, place.wanted)


def _aligned_lines(first_path: str, second_path: str) -> Iterator[Pair]:
    first, second = read_lines(first_path), read_lines(second_path)
    for number, (source, target) in enumerate(zip_longest(first, second)):
        if source is None or target is None:
            longer = number + 1 + sum(1 for _ in (second if source is None else first))
            counts = (number, longer) if source is None else (longer, number)
            raise CorpusError(
                f"{first_path} has {counts[0]} lines and {second_path} has {counts[1]}: "
                "line-aligned files need a line for each line"
            )
        yield source, target


def _kept_on_disk(place: _Place, directory: Path) -> "Dataset":
    """Return the pairs of text files, written to `directory` unless they are there from these same files."""
    stamp = _stamp(place)
    destination = _file_of(place, directory)
    if _stamp_in(destination) != stamp:
        _write(_open_table(place).pairs, destination, stamp, str(place))
    return _memory_mapped(destination)


def _stamp(place: _Place) -> bytes:
    """Return what changes whenever one of the files does, without reading them."""
    stamps = []
    for path in place.paths:
        try:
            status = os.stat(path)
        except OSError as error:
            raise CorpusError(f"{path} does not exist or cannot be read ({error.strerror})") from error
        stamps.append([status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
    return json.dumps(stamps).encode()


def _file_of(place: _Place, directory: Path) -> Path:
    identity = json.dumps([[os.path.abspath(path) for path in place.paths], place.config, place.split, place.wanted])
    return directory / f"pairs-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}.arrow"


def _stamp_in(path: Path) -> bytes | None:
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            return (reader.schema.metadata or {}).get(b"stamp")
    except (OSError, pa.ArrowInvalid):
        return None


def _write(pairs: Iterator[Pair], destination: Path, stamp: bytes, where: str) -> None:
    import pyarrow as pa

    schema = pa.schema([("source", pa.string()), ("target", pa.string())], metadata={b"stamp": stamp})
    rows = 0
    with written_beside(destination) as temporary:
        with pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            while batch := list(islice(pairs, ROWS_PER_BATCH)):
                sources, targets = zip(*batch, strict=True)
                writer.write_batch(pa.record_batch([pa.array(sources), pa.array(targets)], schema=schema))
                rows += len(batch)
        if not rows:
            raise CorpusError(f"{where}: there are no pairs in it")


def _memory_mapped(path: Path) -> "Dataset":
    from datasets import Dataset

    return Dataset.from_file(str(path))


def _in_memory(pairs: list[Pair]) -> "Dataset":
    from datasets import Dataset

    sources, targets = zip(*pairs, strict=True)
    return Dataset.from_dict({"source": sources, "target": targets})


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="vanilla-transformer-", ignore_cleanup_errors=True)


def _scratch_directory() -> Path:
    return Path(_scratch().name)


def _load(place: _Place, directory: Path) -> tuple["Dataset", Columns]:
    """Load what `datasets` reads itself: from the Hub into its own cache, from local files into `directory`."""
    path = place.paths[0]
    try:
        dataset = _load_saved(place) if _is_saved(Path(path)) else _build(place, directory)
    except CorpusError:
        raise
    # `datasets` lets through whatever its readers raise, of any class. The first line of the cause says most.
    except Exception as error:
        reason = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]
        raise CorpusError(f"{path} cannot be loaded: {reason}") from error
    columns = _columns_of(dataset, place)
    return _pairs_of(dataset, columns, place, directory), columns


def _is_saved(path: Path) -> bool:
    return (path / "state.json").exists() or (path / "dataset_dict.json").exists()


def _load_saved(place: _Place) -> "Dataset":
    import datasets

    loaded = datasets.load_from_disk(place.paths[0])
    if isinstance(loaded, datasets.DatasetDict):
        return loaded[_choose_split(place, list(loaded))]
    if place.split is not None:
        raise CorpusError(f"{place} has no splits: leave {place.split!r} out")
    return loaded


def _build(place: _Place, directory: Path) -> "Dataset":
    import datasets

    path = place.paths[0]
    arguments: dict[str, Any] = {"path": path, "name": place.config}
    if os.path.isfile(path):
        arguments = {"path": "parquet", "data_files": path}
    if os.path.exists(path):
        arguments["cache_dir"] = str(directory / "datasets")
    builder = datasets.load_dataset_builder(**arguments)
    if hasattr(builder.config, "keep_default_na"):
        # The CSV reader takes the words "null" and "NA" for missing values, and null is a German word.
        builder = datasets.load_dataset_builder(**arguments, keep_default_na=False)
    builder.download_and_prepare()
    split = place.split or _choose_split(place, list(builder.info.splits or ()))
    return builder.as_dataset(split=split)


def _choose_split(place: _Place, splits: list[str]) -> str:
    if place.split in splits:
        return str(place.split)
    if place.split is None and len(splits) == 1:
        return splits[0]
    problem = "has several splits" if place.split is None else f"has no split {place.split!r}"
    name = ":".join(filter(None, (place.paths[0], place.config)))
    raise CorpusError(f"{place} {problem}: write {' or '.join(f'{name}:{split}' for split in splits)}")


def _columns_of(dataset: "Dataset", place: _Place) -> Columns:
    from datasets import Translation

    translation = dataset.features.get("translation")
    languages = translation.languages if isinstance(translation, Translation) else translation
    names = list(languages) if isinstance(languages, list | tuple | dict) else []
    return choose_columns(dataset.column_names, names, place.wanted, str(place))


def _pairs_of(dataset: "Dataset", columns: Columns, place: _Place, directory: Path) -> "Dataset":
    if not len(dataset):
        raise CorpusError(f"{place}: there are no pairs in it")
    names = [columns.source, columns.target]
    if columns.parent is not None:
        dataset = dataset.select_columns([columns.parent]).flatten()
        names = [f"{columns.parent}.{name}" for name in names]
    kinds = [getattr(dataset.features[name], "dtype", "no text") for name in names]
    for name, kind in zip(names, kinds, strict=True):
        if kind not in ("string", "large_string"):
            raise CorpusError(f"{place}: column {name!r} holds {kind}, which is not text")
    if kinds == ["string", "string"] and not any(dataset.data.column(name).null_count for name in names):
        return dataset.select_columns(names).rename_columns(dict(zip(names, ("source", "target"), strict=True)))
    destination = _file_of(place, directory)
    _write(_texts_of(dataset, names), destination, b"", str(place))
    return _memory_mapped(destination)


def _texts_of(dataset: "Dataset", names: list[str]) -> Iterator[Pair]:
    """Yield the texts of two columns, an empty one for a null."""
    for table in dataset.with_format("arrow").iter(ROWS_PER_BATCH):
        sources, targets = (table.column(name).to_pylist() for name in names)
        for source, target in zip(sources, targets, strict=True):
            yield source or "", target or ""
