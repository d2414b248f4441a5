"""A folder on any file system that fsspec knows, in which independent tasks leave their results.

`job.json` describes the job to which all tasks must belong. A task writes its files, and last a record of their input:
a finished task is skipped, and a task of another job is refused.
"""

import glob
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from fsspec.implementations.local import LocalFileSystem

from vanilla_transformer.atomic_files import named_when_full, sync
from vanilla_transformer.extras.many_machines.filesystems import filesystem_of, naming

JOB = "job.json"


class TaskError(ValueError):
    """Tasks that do not belong together, or are unfinished; the message says which and what to do."""


class TaskFolder:
    """The folder of a job, on any file system that fsspec knows."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._filesystem, self._path = filesystem_of(url)

    def read(self, name: str) -> dict[str, Any] | None:
        """Reads a JSON file; None if there is none."""
        content = self.read_bytes(name)
        try:
            return None if content is None else json.loads(content)
        except ValueError as error:
            raise TaskError(f"{self.url}/{name} is damaged: delete it, and run the same command again.") from error

    def write(self, name: str, values: dict[str, Any]) -> None:
        """Writes a JSON file, which appears only when complete."""
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, name)
            with named_when_full(file, file):
                file.write_text(json.dumps(values, indent=1), encoding="utf-8")
            self.put(file, name)

    def put(self, file: Path, name: str) -> None:
        """Copies a file into the folder, where it appears only when complete, as it does on object stores anyway."""
        with naming(self.url):
            self._filesystem.makedirs(self._path, exist_ok=True)
            if not isinstance(self._filesystem, LocalFileSystem):
                self._filesystem.put_file(str(file), self._at(name))
                return
        with self._beside(file, name) as beside:
            os.replace(beside, self._at(name))

    def put_first(self, file: Path, name: str) -> None:
        """Copies a file into the folder unless the name exists: the first file stays."""
        if self.size(name) is not None:
            return
        if not isinstance(self._filesystem, LocalFileSystem):
            self.put(file, name)
            return
        with self._beside(file, name) as beside:
            try:
                os.link(beside, self._at(name))
            except FileExistsError:
                pass
            except OSError:  # A file system without links.
                os.replace(beside, self._at(name))

    @contextmanager
    def _beside(self, file: Path, name: str) -> Iterator[Path]:
        """Makes a copy of a file in the folder, on this disk, to be renamed; deletes all other copies afterwards.

        Other copies were left by killed tasks, or come too late: the file of that name then has the same contents.
        """
        path = Path(self._at(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        copy = path.with_name(f".{name}.{secrets.token_hex(4)}.tmp")
        try:
            with named_when_full(path, copy):
                shutil.copyfile(file, copy)
                with suppress(FileNotFoundError):
                    sync(copy)
            yield copy
        except FileNotFoundError:
            if not path.exists():
                raise
        finally:
            for one in path.parent.glob(f".{glob.escape(name)}.*.tmp"):
                one.unlink(missing_ok=True)

    def get(self, name: str, file: Path) -> None:
        """Copies a file of the folder to this disk."""
        with naming(f"{self.url}/{name}"):
            self._filesystem.get_file(self._at(name), str(file))

    def local(self, name: str) -> Path | None:
        """Returns the path of a file of the folder on this disk, or None if the folder is elsewhere."""
        return Path(self._at(name)) if isinstance(self._filesystem, LocalFileSystem) else None

    def read_bytes(self, name: str) -> bytes | None:
        """Reads a file; None if there is none."""
        try:
            with naming(f"{self.url}/{name}"):
                return cast(bytes, self._filesystem.cat_file(self._at(name)))
        except FileNotFoundError:
            return None

    def open(self, name: str) -> Any:
        """Opens a file of the folder to read bytes."""
        with naming(f"{self.url}/{name}"):
            return self._filesystem.open(self._at(name), "rb")

    def size(self, name: str) -> int | None:
        """Returns the size of a file in bytes, or None if there is none."""
        try:
            with naming(f"{self.url}/{name}"):
                return int(self._filesystem.size(self._at(name)))
        except FileNotFoundError:
            return None

    def names(self) -> set[str]:
        """Returns the names of the files in the folder."""
        try:
            with naming(self.url):
                entries = self._filesystem.ls(self._path, detail=False, refresh=True)
            return {entry.rsplit("/", 1)[-1] for entry in entries}
        except FileNotFoundError:
            return set()

    def workplace(self, name: str) -> Path:
        """Returns the path of an unfinished file: in the folder, or on this disk if the folder is elsewhere."""
        if isinstance(self._filesystem, LocalFileSystem):
            place = Path(self._path, "unfinished")
        else:
            key = hashlib.blake2b(self.url.encode(), digest_size=8).hexdigest()
            place = Path(tempfile.gettempdir(), f"vanilla-transformer-{key}")
        place.mkdir(parents=True, exist_ok=True)
        return place / name

    def claim(self, job: dict[str, Any]) -> None:
        """Claims the folder for a job.

        Raises:
            TaskError: The folder belongs to another job.
        """
        if self.read(JOB) is None:
            self.write(JOB, job)
        self.check(job)

    def check(self, job: dict[str, Any]) -> None:
        """Raises TaskError if the folder belongs to another job, as far as the job is known."""
        there = self.read(JOB) or {}
        for name in job:
            if name in there and there[name] != job[name]:
                raise TaskError(
                    f"{self.url} holds the tasks of another {name} ({_short(there[name])}, and now "
                    f"{_short(job[name])}): use the former, or name another directory."
                )

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]} ..."


def job_digest(job: dict[str, Any]) -> str:
    """Returns a hash that identifies a job in the record of a task."""
    return hashlib.blake2b(json.dumps(job, sort_keys=True).encode(), digest_size=16).hexdigest()


def in_ranges(numbers: Sequence[int]) -> str:
    """Writes numbers as ranges: 1-3, 7."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    words = ["-".join(map(str, ends)) for ends in ranges]
    return ", ".join(words[:20]) + (f" and {len(words) - 20:,} more" if len(words) > 20 else "")
