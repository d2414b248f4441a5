"""Corpora loaded by `datasets`: from the Hub, from directories and from Parquet, on disk or as a stream."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, DatasetBuilder, IterableDataset

from vanilla_transformer.atomic_files import has_no_room
from vanilla_transformer.data.columns import Columns, TextForm, refuse_twins
from vanilla_transformer.data.sources import CorpusLocation
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.data.text_streams import TextStream, find_columns, stream_of
from vanilla_transformer.network import hub_or_cache


@dataclass(frozen=True)
class LoadedCorpus:
    """A dataset with the columns of it that a form is read from.

    `stamp` changes if the text may have changed; None if only reading it can tell.
    """

    location: CorpusLocation
    directory: Path
    dataset: Dataset | IterableDataset
    columns: Columns
    stamp: str | None

    def stream(self) -> TextStream:
        """Return the rows as a stream, which says in one sentence what it cannot read."""
        stream = stream_of(self.dataset, str(self.location), self.stamp, self.location.form, self.columns)

        def tables() -> Iterator[pa.Table]:
            with _said_in_one_sentence(self.location, self.directory):
                yield from stream.tables()

        return replace(stream, tables=tables)

    def mapped(self) -> Dataset | None:
        """Return the rows as they are on this disk; None if some of them are not text, or are fetched."""
        if isinstance(self.dataset, IterableDataset) or None in self.columns.names:
            return None
        parent, names = self.columns.parent, [str(name) for name in self.columns.names]
        flat = self.dataset if parent is None else self.dataset.select_columns([parent]).flatten()
        names = names if parent is None else [f"{parent}.{name}" for name in names]
        if any(flat.features[name] != datasets.Value("string") or flat.data.column(name).null_count for name in names):
            return None
        return flat.select_columns(names).rename_columns(dict(zip(names, self.location.form.names, strict=True)))


def load(location: CorpusLocation, directory: Path, streaming: bool) -> LoadedCorpus:
    """Load a dataset: from the Hub in the cache of `datasets`, from local files in `directory`.

    With `streaming`, no copy of its text is made on this disk, and each pass fetches it anew.
    """
    with _said_in_one_sentence(location, directory):
        dataset, stamp = _dataset(location, directory, streaming)
        columns = find_columns(dataset, location.wanted, str(location), location.form)
    if isinstance(dataset, Dataset) and not len(dataset):
        raise CorpusError(f"there are no {location.form.unit} in {location}")
    return LoadedCorpus(location, directory, dataset, columns, stamp)


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


def _dataset(
    location: CorpusLocation, directory: Path, streaming: bool
) -> tuple[Dataset | IterableDataset, str | None]:
    """Return a dataset, and a stamp that changes if its text may have changed."""
    if _is_saved(Path(location.paths[0])):
        return _load_saved(location), None  # Already on this disk as Arrow, which is mapped and never copied.
    builder = _builder(location, directory)
    dataset: Dataset | IterableDataset
    if streaming:
        streams = builder.as_streaming_dataset()
        split = _choose_split(location, list(streams))
        dataset = streams[split]
    else:
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
