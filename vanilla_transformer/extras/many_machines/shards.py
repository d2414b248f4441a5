"""A tokenized corpus in shards, on this disk or elsewhere, read in parts for which batches are planned one by one.

Besides the tokenizer's files, a directory holds for each shard `tokens-00017.arrow`, `lengths-00017.npy` and
`report-00017.json`, and `manifest.json`, which is written last.
"""

import atexit
import json
import math
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from vanilla_transformer.atomic_files import atomic_write, has_no_room
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.data.token_corpus import (
    EpochPart,
    Lengths,
    PreparationReport,
    PreparedCorpus,
    Rows,
    TokenFile,
    TrainingCorpus,
    rows_of_several,
)
from vanilla_transformer.extras.background import in_background
from vanilla_transformer.extras.many_machines.folder import TaskFolder
from vanilla_transformer.fingerprints import fingerprint_settings

MANIFEST = "manifest.json"
# A version that writes another layout increases this number, and this version refuses it.
LAYOUT = 1
# Seconds for which an ending process waits for a copy in progress; a longer one is deleted unfinished.
_LAST_COPY = 1.0
_LISTS = ("columns", "languages", "labels")


def tokens_name(number: int) -> str:
    """Returns the name of the file of a shard's ids."""
    return f"tokens-{number:05d}.arrow"


def lengths_name(number: int) -> str:
    """Returns the name of the file of a shard's lengths, a row for each column of the corpus."""
    return f"lengths-{number:05d}.npy"


@dataclass(frozen=True)
class Shard:
    """A shard's entry in the manifest.

    Attributes:
        tokens: A hash of the ids; `text` is a hash of their text.
        token_counts: Number of ids in each column.
        sizes: Bytes of the shard's two files.
    """

    number: int
    id: str
    report: PreparationReport
    tokens: str
    text: str
    token_counts: tuple[int, ...]
    sizes: tuple[int, int]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.report.kept

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Shard":
        """Restores a shard from JSON data."""
        known = {name: values[name] for name in ("number", "id", "tokens", "text")}
        counts, sizes = tuple(values["token_counts"]), (values["sizes"][0], values["sizes"][1])
        return cls(**known, report=PreparationReport(**values["report"]), token_counts=counts, sizes=sizes)


@dataclass(frozen=True)
class Manifest:
    """The manifest of a corpus in shards.

    Attributes:
        settings: A hash of everything but the text on which the tokens depend: see `settings_fingerprint`.
        languages: The two languages of the text, if known.
        labels: The labels of the text in the order of their ids, if it has labels.
    """

    task: str
    columns: tuple[str, ...]
    max_length: int
    settings: str
    languages: tuple[str | None, str | None]
    labels: tuple[str, ...] | None
    shards: tuple[Shard, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the manifest as JSON data."""
        return {"layout": LAYOUT, **asdict(self)}

    @property
    def report(self) -> PreparationReport:
        """Counts of rows kept and dropped in all shards."""
        reports = [shard.report for shard in self.shards]
        names = PreparationReport.__dataclass_fields__
        return PreparationReport(*(sum(getattr(report, name) for report in reports) for name in names))


def read_manifest(folder: TaskFolder) -> tuple[Manifest, str]:
    """Returns the manifest of a prepared corpus, and its hash.

    Raises:
        CorpusError: There is no manifest, or this version cannot read it.
    """
    content = folder.read_bytes(MANIFEST)
    if content is None:
        raise CorpusError(
            f"{folder.url} has no {MANIFEST}, which is written when all tasks of `prepare` are done: run "
            "that command (again), or name another directory"
        )
    try:
        values = json.loads(content)
        if values.pop("layout") != LAYOUT:
            raise ValueError
        shards = tuple(map(Shard.from_json, values.pop("shards")))
        lists = {name: None if values[name] is None else tuple(values[name]) for name in _LISTS}
        manifest = Manifest(**{**values, **lists}, shards=shards)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise CorpusError(
            f"{folder.url}/{MANIFEST} is damaged or of another version: prepare the corpus again"
        ) from None
    return manifest, fingerprint_settings(manifest.to_json())


def cut_epoch(rows: Sequence[int], most: int, seed: int, epoch: int) -> list[list[int]]:
    """Returns the numbers of the shards in each part of an epoch: in random order, in parts of about equal size.

    Shards that fit into one part stay in order.

    Args:
        rows: Number of rows of each shard.
        most: Maximum number of rows of a part.

    Raises:
        CorpusError: A shard has more rows than a part may have.
    """
    there = [number for number, count in enumerate(rows) if count]
    total, largest = sum(rows), max(rows)
    if total <= most:
        return [there]
    if largest > most:
        raise CorpusError(
            f"shard {rows.index(largest)} has {largest:,} rows, but a part of an epoch has at most {most:,}: "
            "give a larger --part-pairs, or prepare the corpus with more --tasks"
        )
    # Separate from the random numbers that plans are made with.
    order = np.random.default_rng(np.random.SeedSequence([seed, epoch], spawn_key=(1, 0))).permutation(there)
    counts = np.array(rows)[order]
    middles = np.cumsum(counts) - counts / 2
    for number in range(math.ceil(total / most), total + 1):
        owners = (middles * number / total).astype(np.int64)
        parts = np.split(order, np.flatnonzero(np.diff(owners)) + 1)
        if max(sum(rows[shard] for shard in part) for part in parts) <= most:
            break
    return [sorted(part.tolist()) for part in parts]


class ShardedCorpus(TrainingCorpus):
    """A corpus that `prepare` has put into a directory, on any file system that fsspec knows.

    Args:
        url: The directory.
        seed: Decides the order of the shards, if they do not fit into one part.
        part_pairs: Maximum number of rows that are planned together.
        copies: The directory for copies of remote shards, those of the current and the next part at a time.

    Raises:
        CorpusError: There is no such corpus, or a shard is larger than a part may be.
    """

    def __init__(self, url: str, *, seed: int, part_pairs: int, copies: Path) -> None:
        self._folder = TaskFolder(url)
        self.manifest, self.tokens = read_manifest(self._folder)
        self._seed, self._part_pairs = seed, part_pairs
        self.report = self.manifest.report
        self.texts = tuple(shard.text for shard in self.manifest.shards)
        self._rows = [shard.rows for shard in self.manifest.shards]
        self._starts = np.cumsum([0, *self._rows])
        self._files = ShardFiles(self._folder, self.manifest, copies)
        self._next: tuple[tuple[int, ...], Future[None]] | None = None
        self._shards_of_parts(0)  # Reports at once a shard that is too large.

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def token_counts(self) -> tuple[int, ...]:
        """Number of ids in all shards, for each column."""
        return tuple(map(sum, zip(*(shard.token_counts for shard in self.manifest.shards), strict=True)))

    def epoch_parts(self, epoch: int, first: int = 0) -> Iterator[EpochPart]:
        """Yield the parts of an epoch; the shards of the next part are fetched and checked meanwhile."""
        parts = self._shards_of_parts(epoch)
        sizes = [sum(self._rows[shard] for shard in part) for part in parts]
        for number in range(first, len(parts)):
            following = parts[number + 1] if number + 1 < len(parts) else self._shards_of_parts(epoch + 1)[0]
            before, share = sum(sizes[:number]) / len(self), sizes[number] / len(self)
            # Bound to no name here, a part is freed as soon as the caller drops it.
            yield EpochPart(number, self._opened(parts[number], following), before, share)

    def all_lengths(self) -> Iterator[tuple[Lengths, ...]]:
        """Yield the lengths of one shard after the other."""
        for shard in self.manifest.shards:
            if shard.rows:
                yield tuple(self._files.lengths(shard.number))

    def _shards_of_parts(self, epoch: int) -> list[list[int]]:
        return cut_epoch(self._rows, self._part_pairs, self._seed, epoch)

    def _opened(self, shards: Sequence[int], following: Sequence[int]) -> "_ShardedPart":
        """Opens a part, fetched already or not, and starts to fetch and check the following one."""
        if self._next is not None and self._next[0] == tuple(shards):
            self._next[1].result()
        else:
            self._files.fetch(shards, keep=shards)
        opened = [self._files.open(shard) for shard in shards]

        def look_ahead() -> None:
            self._files.fetch(following, keep={*shards, *following})
            for shard in following:
                self._files.open(shard)

        self._next = tuple(following), in_background(look_ahead, "shards")
        lengths = [lengths for _, lengths in opened]
        columns = lengths[0] if len(lengths) == 1 else np.concatenate(lengths, axis=1)
        part = _ShardedPart([tokens for tokens, _ in opened], self._starts[shards])
        part.lengths = dict(zip(self.manifest.columns, columns, strict=True))
        part.report, part.tokens, part.texts = self.report, self.tokens, self.texts
        return part


class _ShardedPart(PreparedCorpus):
    """The rows of some shards, one shard after the other."""

    def __init__(self, files: Sequence[TokenFile], numbers: NDArray[np.int64]) -> None:
        self._files, self._numbers = files, numbers
        self._starts = np.cumsum([0, *map(len, files)])[:-1]

    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> Rows:
        """Return the ids of the rows at `indices`, by column."""
        positions = np.asarray(indices, dtype=np.int64)
        if len(positions) == 0 or len(self._files) == 1:
            return self._files[0].rows(positions)
        return rows_of_several(self._files, self._starts, positions)

    def row_numbers(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of rows in the whole corpus."""
        owners = np.searchsorted(self._starts, indices, side="right") - 1
        return indices - self._starts[owners] + self._numbers[owners]


class ShardFiles:
    """The files of shards on this disk: the shards themselves if local, otherwise copies.

    Several processes may share the copies.
    """

    def __init__(self, folder: TaskFolder, manifest: Manifest, copies: Path) -> None:
        self._folder, self._copies = folder, copies
        self._columns, self._shards = manifest.columns, manifest.shards
        self.are_local = folder.local(MANIFEST) is not None
        self._go_with_the_process = False
        # The modification times of the files that this process has read completely, by shard.
        self._checked: dict[int, tuple[int, int]] = {}
        self._copying, self._over = threading.Lock(), threading.Event()

    def fetch(self, shards: Collection[int], keep: Collection[int]) -> None:
        """Copies remote shards to this disk, and deletes copies that are not in `keep`.

        Raises:
            CorpusError: A shard cannot be read.
            OSError: The disk is full.
        """
        if self.are_local:
            return
        if not self._go_with_the_process:
            # Copies left by a killed process are used by the run's next process.
            self._go_with_the_process = True
            atexit.register(self._delete)
        wanted = {name for shard in keep for name, _ in self._names(shard)}
        with self._copying:
            if self._over.is_set():
                return
            self._copies.mkdir(parents=True, exist_ok=True)
        for path in (*self._copies.glob("*.arrow"), *self._copies.glob("*.npy")):
            if path.name not in wanted:
                with suppress(OSError):
                    path.unlink()
        for shard in shards:
            for name, size in self._names(shard):
                with self._copying:
                    if not self._over.is_set():
                        self._copy(name, size)

    def _delete(self) -> None:
        """Deletes all copies, even while a thread is making the next one."""
        self._over.set()
        self._copying.acquire(timeout=_LAST_COPY)
        shutil.rmtree(self._copies, ignore_errors=True)

    def open(self, shard: int) -> tuple[TokenFile, NDArray[np.unsignedinteger]]:
        """Opens the ids and the lengths of a shard, both memory-mapped; the first time reads and checks all of them.

        Raises:
            CorpusError: The files differ from the manifest.
        """
        known = self._shards[shard]
        tokens, lengths = (self._path(name) for name, _ in self._names(shard))
        with self._damage_named(shard):
            for (name, size), path in zip(self._names(shard), (tokens, lengths), strict=True):
                found = path.stat().st_size
                if found != size:
                    raise CorpusError(f"{self._folder.url}/{name} has {found:,} bytes instead of {size:,}")
            file, counts = TokenFile(tokens), np.load(lengths, mmap_mode="r")
            written = tokens.stat().st_mtime_ns, lengths.stat().st_mtime_ns
            if self._checked.get(shard) != written:
                facts, expected = (file.id, file.names, len(file)), (known.id, self._columns, known.rows)
                if facts != expected or file.hexdigest() != known.tokens:
                    raise CorpusError(f"{self._folder.url}/{tokens.name} is not the one that the manifest knows of")
                if not np.array_equal(np.stack([*file.lengths().values()]), counts):
                    raise CorpusError(f"{self._folder.url}/{lengths.name} is not the one that the manifest knows of")
                self._checked[shard] = written
        return file, counts

    def lengths(self, shard: int) -> NDArray[np.unsignedinteger]:
        """Reads the lengths of a shard, wherever it lies, a row for each column.

        Raises:
            CorpusError: The token counts differ from the manifest.
        """
        name = lengths_name(self._shards[shard].number)
        with self._damage_named(shard):
            with self._folder.open(name) as file:
                counts: NDArray[np.unsignedinteger] = np.load(file)
            if tuple(counts.sum(axis=1, dtype=np.int64)) != self._shards[shard].token_counts:
                raise CorpusError(f"{self._folder.url}/{name} is not the one that the manifest knows of")
        return counts

    @contextmanager
    def _damage_named(self, shard: int) -> Iterator[None]:
        """Adds to errors about a shard how to make the shard again; deletes a damaged copy."""
        number = self._shards[shard].number
        again = f"delete {tokens_name(number)}, and run task {number} of `prepare` again"
        try:
            yield
        except Exception as error:  # Damaged metadata makes Arrow and NumPy raise any of them.
            if not self.are_local:
                for name, _ in self._names(shard):
                    self._path(name).unlink(missing_ok=True)
            if isinstance(error, CorpusError):
                raise CorpusError(f"{error}: {again}") from None
            raise CorpusError(
                f"shard {number} of {self._folder.url} cannot be read ({_reason(error)}): {again}"
            ) from error

    def _names(self, shard: int) -> list[tuple[str, int]]:
        known = self._shards[shard]
        return list(zip((tokens_name(known.number), lengths_name(known.number)), known.sizes, strict=True))

    def _path(self, name: str) -> Path:
        return self._folder.local(name) or self._copies / name

    def _copy(self, name: str, size: int) -> None:
        path = self._copies / name
        with FileLock(self._copies / f"{name}.lock"):
            if path.exists() and path.stat().st_size == size:
                return
            try:
                with atomic_write(path) as beside:
                    self._folder.get(name, beside)
            except Exception as error:
                if has_no_room(error):
                    raise
                raise CorpusError(
                    f"{self._folder.url}/{name} cannot be fetched ({_reason(error)}): fix this, and run the "
                    "same command again"
                ) from error


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__
