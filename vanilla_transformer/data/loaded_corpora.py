"""Corpora loaded by `datasets`: from the Hub, from directories and from Parquet, on disk or as a stream."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, DatasetBuilder, IterableDataset

from vanilla_transformer.atomic_files import has_no_room
from vanilla_transformer.data.columns import TextForm
from vanilla_transformer.data.locations import CorpusLocation
from vanilla_transformer.data.storage import write_tables
from vanilla_transformer.data.tables import Columns, refuse_twins
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.data.text_streams import TextStream, column_tables, find_columns, stream_of
from vanilla_transformer.network import hub_or_cache


def load_rows(location: CorpusLocation, directory: Path, destination: Path) -> tuple[Dataset, Columns]:
    """Load from the Hub into the cache of `datasets`, from local files into `directory`; return rows and columns.

    Rows that cannot be used from there, because a text is missing, are copied to `destination`.
    """
    with _said_in_one_sentence(location, directory):
        dataset = _load_saved(location) if _is_saved(Path(location.paths[0])) else _download(location, directory)
    form = location.form
    columns, _ = find_columns(dataset, location.wanted, str(location), form)
    if not len(dataset):
        raise CorpusError(f"there are no {form.unit} in {location}")
    names = [name for name in columns.names if name is not None]
    flat = dataset
    if columns.parent is not None:
        flat = dataset.select_columns([columns.parent]).flatten()
        names = [f"{columns.parent}.{name}" for name in names]
    plain = len(names) == len(form.names) and all(flat.features[name] == datasets.Value("string") for name in names)
    if plain and not any(flat.data.column(name).null_count for name in names):
        return flat.select_columns(names).rename_columns(dict(zip(names, form.names, strict=True))), columns
    write_tables(column_tables(dataset, columns, str(location), form), destination, "", str(location), form)
    return Dataset.from_file(str(destination)), columns


def stream_rows(location: CorpusLocation, directory: Path) -> tuple[TextStream, Columns]:
    """Open a dataset without a copy of its text on this disk: each pass fetches it anew."""
    if _is_saved(Path(location.paths[0])):
        # It is already on this disk as Arrow, which is mapped and never copied.
        dataset, columns = load_rows(location, directory, directory / "streamed.arrow")
        return stream_of(dataset, str(location), form=location.form), columns
    with _said_in_one_sentence(location, directory):
        builder = _builder(location, directory)
        streams = builder.as_streaming_dataset()
        split = location.split if location.split in streams else _choose_split(location, list(streams))
        streamed: IterableDataset = streams[split]
        columns, _ = find_columns(streamed, location.wanted, str(location), location.form)
    # A file's modification time, or its commit on the Hub.
    files = getattr(builder.config, "data_files", None) or {}
    origins = [[str(name), files[name], files[name].origin_metadata] for name in files]
    stamp = json.dumps([builder.hash, builder.config_id, origins, split, location.wanted])
    tables = partial(_tables, streamed, columns, location, directory)
    return TextStream(str(location), tables, stamp, form=location.form), columns


def _tables(
    dataset: IterableDataset, columns: Columns, location: CorpusLocation, directory: Path
) -> Iterator[pa.Table]:
    with _said_in_one_sentence(location, directory):
        yield from column_tables(dataset, columns, str(location), location.form)


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


def _is_saved(path: Path) -> bool:
    return (path / "state.json").exists() or (path / "dataset_dict.json").exists()


def _load_saved(location: CorpusLocation) -> Dataset:
    loaded = datasets.load_from_disk(location.paths[0])
    if isinstance(loaded, datasets.DatasetDict):
        return loaded[_choose_split(location, list(loaded))]
    if location.split is not None:
        raise CorpusError(f"{location} has no splits: leave {location.split!r} out")
    return loaded


def _download(location: CorpusLocation, directory: Path) -> Dataset:
    builder = _builder(location, directory)
    builder.download_and_prepare()
    split = location.split or _choose_split(location, list(builder.info.splits or ()))
    return builder.as_dataset(split=split)


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
