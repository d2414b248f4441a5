"""What the library `datasets` loads: from the Hub, from directories and from Parquet, on disk or as a stream."""

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
from vanilla_transformer.data.lines import CorpusError
from vanilla_transformer.data.places import Place
from vanilla_transformer.data.storage import write_tables
from vanilla_transformer.data.streams import PairStream, column_tables, find_columns, stream_of
from vanilla_transformer.data.tables import Columns, refuse_twins
from vanilla_transformer.network import hub_or_cache


def load_pairs(place: Place, directory: Path, destination: Path) -> tuple[Dataset, Columns]:
    """Load from the Hub into the cache of `datasets`, from local files into `directory`; return pairs and columns.

    Pairs that cannot be taken from there as they are, because a text is missing, are copied to `destination`.
    """
    with _said_in_one_sentence(place, directory):
        dataset = _load_saved(place) if _is_saved(Path(place.paths[0])) else _download(place, directory)
    columns, _ = find_columns(dataset, place.wanted, str(place))
    if not len(dataset):
        raise CorpusError(f"{place}: there are no pairs in it")
    names = [columns.source, columns.target]
    flat = dataset
    if columns.parent is not None:
        flat = dataset.select_columns([columns.parent]).flatten()
        names = [f"{columns.parent}.{name}" for name in names]
    plain = all(flat.features[name] == datasets.Value("string") for name in names)
    if plain and not any(flat.data.column(name).null_count for name in names):
        return flat.select_columns(names).rename_columns(dict(zip(names, ("source", "target"), strict=True))), columns
    write_tables(column_tables(dataset, columns, str(place)), destination, "", str(place))
    return Dataset.from_file(str(destination)), columns


def stream_pairs(place: Place, directory: Path) -> tuple[PairStream, Columns]:
    """Open a dataset without a copy of its text on this disk: each time it is gone through, it is fetched anew."""
    if _is_saved(Path(place.paths[0])):
        # It lies on this disk as Arrow, which is mapped and never copied.
        dataset, columns = load_pairs(place, directory, directory / "streamed.arrow")
        return stream_of(dataset, str(place)), columns
    with _said_in_one_sentence(place, directory):
        builder = _builder(place, directory)
        streams = builder.as_streaming_dataset()
        split = place.split if place.split in streams else _choose_split(place, list(streams))
        streamed: IterableDataset = streams[split]
        columns, _ = find_columns(streamed, place.wanted, str(place))
    # Of each file its time, or on the Hub its commit.
    files = getattr(builder.config, "data_files", None) or {}
    origins = [[str(name), files[name], files[name].origin_metadata] for name in files]
    stamp = json.dumps([builder.hash, builder.config_id, origins, split, place.wanted])
    return PairStream(str(place), partial(_tables, streamed, columns, place, directory), stamp), columns


def _tables(dataset: IterableDataset, columns: Columns, place: Place, directory: Path) -> Iterator[pa.Table]:
    with _said_in_one_sentence(place, directory):
        yield from column_tables(dataset, columns, str(place))


@contextmanager
def _said_in_one_sentence(place: Place, directory: Path) -> Iterator[None]:
    """Turn what the readers of `datasets` raise, which may be of any class, into a CorpusError.

    The first line of an error's cause says most.
    """
    cache = _cache(place, directory) or datasets.config.HF_CACHE_HOME
    obstacle, is_here = None, os.path.exists(place.paths[0])
    try:
        with nullcontext() if is_here else hub_or_cache() as obstacle:
            yield
    except (CorpusError, GeneratorExit):
        raise
    except Exception as error:
        if obstacle and isinstance(error, OSError):
            raise CorpusError(f"there is no {place} here, and {obstacle}") from error
        if _is_out_of_room(error):
            raise CorpusError(f"{place} cannot be loaded, the disk of {cache} is full: make some room") from error
        reason = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]
        raise CorpusError(f"{place} cannot be loaded: {reason}") from error


def _is_out_of_room(error: BaseException | None) -> bool:
    """Whether an error came of a full disk; `datasets` looks at how much room there is before it begins."""
    while error is not None:
        if has_no_room(error) or "Not enough disk space" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _cache(place: Place, directory: Path) -> Path | None:
    """Where `datasets` writes what it reads of local files; None for its own place."""
    return directory / "datasets" if os.path.exists(place.paths[0]) else None


def _is_saved(path: Path) -> bool:
    return (path / "state.json").exists() or (path / "dataset_dict.json").exists()


def _load_saved(place: Place) -> Dataset:
    loaded = datasets.load_from_disk(place.paths[0])
    if isinstance(loaded, datasets.DatasetDict):
        return loaded[_choose_split(place, list(loaded))]
    if place.split is not None:
        raise CorpusError(f"{place} has no splits: leave {place.split!r} out")
    return loaded


def _download(place: Place, directory: Path) -> Dataset:
    builder = _builder(place, directory)
    builder.download_and_prepare()
    split = place.split or _choose_split(place, list(builder.info.splits or ()))
    return builder.as_dataset(split=split)


def _builder(place: Place, directory: Path) -> DatasetBuilder:
    path = place.paths[0]
    arguments: dict[str, Any] = {"path": path, "name": place.config}
    if os.path.isfile(path):
        _check_parquet(path)
        arguments = {"path": "parquet", "data_files": path}
    cache = _cache(place, directory)
    if cache is not None:
        arguments["cache_dir"] = str(cache)
    builder = datasets.load_dataset_builder(**arguments)
    if hasattr(builder.config, "keep_default_na"):
        # The CSV reader takes the words "null" and "NA" for missing values, and null is a German word.
        builder = datasets.load_dataset_builder(**arguments, keep_default_na=False)
    return builder


def _check_parquet(path: str) -> None:
    """Refuse what `datasets` refuses too, without saying that there is nothing in it or which names stand twice."""
    if not os.path.getsize(path):
        raise CorpusError(f"{path} is empty")
    metadata = pq.read_metadata(path)
    if not metadata.num_rows:
        raise CorpusError(f"{path}: there are no pairs in it")
    refuse_twins(names := metadata.schema.to_arrow_schema().names, names, path)


def _choose_split(place: Place, splits: list[str]) -> str:
    if place.split in splits:
        return str(place.split)
    if place.split is None and len(splits) == 1:
        return splits[0]
    problem = "has several splits" if place.split is None else f"has no split {place.split!r}"
    name = ":".join(filter(None, (place.paths[0], place.config)))
    raise CorpusError(f"{place} {problem}: write {' or '.join(f'{name}:{split}' for split in splits)}")
