"""A folder on any file system that fsspec knows, in which tasks that need nobody leave what they have come to.

`job.json` says of which job all its tasks have to be. A task writes its files, and last a record of what they were
made from: a task that is done is skipped, and one of another job is refused.
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
from vanilla_transformer.filesystems import filesystem_of, naming

JOB = "job.json"


class TaskError(ValueError):
    """Tasks that do not belong together, or are not all done; the message says which and what to do."""


class TaskFolder:
    """The folder of a job, on any file system that fsspec knows."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._filesystem, self._path = filesystem_of(url)

    def read(self, name: str) -> dict[str, Any] | None:
        """Reads a file of JSON; None if there is none."""
        content = self.read_bytes(name)
        try:
            return None if content is None else json.loads(content)
        except ValueError as error:
            raise TaskError(f"{self.url}/{name} is damaged: delete it, and give the same command again.") from error

    def write(self, name: str, values: dict[str, Any]) -> None:
        """Puts JSON into a file, which appears whole."""
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, name)
            with named_when_full(file, file):
                file.write_text(json.dumps(values, indent=1), encoding="utf-8")
            self.put(file, name)

    def put(self, file: Path, name: str) -> None:
        """Copies a file into the folder, where it appears whole: other stores than disks have it so by themselves."""
        with naming(self.url):
            self._filesystem.makedirs(self._path, exist_ok=True)
            if not isinstance(self._filesystem, LocalFileSystem):
                self._filesystem.put_file(str(file), self._at(name))
                return
        with self._beside(file, name) as beside:
            os.replace(beside, self._at(name))

    def put_first(self, file: Path, name: str) -> None:
        """Copies a file into the folder unless there is one of that name: the first to be there stays."""
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
        """A copy of a file in the folder, on this disk, to be given its name; and no other copy of it afterwards.

        Others are what killed tasks have left, or come too late: what is there by the name then is the same.
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
        """The path of a file of the folder on this disk, None if the folder lies elsewhere."""
        return Path(self._at(name)) if isinstance(self._filesystem, LocalFileSystem) else None

    def read_bytes(self, name: str) -> bytes | None:
        """Reads a file; None if there is none."""
        try:
            with naming(f"{self.url}/{name}"):
                return cast(bytes, self._filesystem.cat_file(self._at(name)))
        except FileNotFoundError:
            return None

    def open(self, name: str) -> Any:
        """A file of the folder to read bytes from."""
        with naming(f"{self.url}/{name}"):
            return self._filesystem.open(self._at(name), "rb")

    def size(self, name: str) -> int | None:
        """The bytes of a file, None where there is none."""
        try:
            with naming(f"{self.url}/{name}"):
                return int(self._filesystem.size(self._at(name)))
        except FileNotFoundError:
            return None

    def names(self) -> set[str]:
        """The files that are there."""
        try:
            with naming(self.url):
                entries = self._filesystem.ls(self._path, detail=False, refresh=True)
            return {entry.rsplit("/", 1)[-1] for entry in entries}
        except FileNotFoundError:
            return set()

    def workplace(self, name: str) -> Path:
        """The path at which a file grows until it is done: in the folder, or else on this machine's disk."""
        if isinstance(self._filesystem, LocalFileSystem):
            place = Path(self._path, "unfinished")
        else:
            key = hashlib.blake2b(self.url.encode(), digest_size=8).hexdigest()
            place = Path(tempfile.gettempdir(), f"vanilla-transformer-{key}")
        place.mkdir(parents=True, exist_ok=True)
        return place / name

    def claim(self, job: dict[str, Any]) -> None:
        """Makes the folder that of a job.

        Raises:
            TaskError: It is that of another.
        """
        if self.read(JOB) is None:
            self.write(JOB, job)
        self.check(job)

    def check(self, job: dict[str, Any]) -> None:
        """Raises TaskError where the folder is that of another job than this, as far as it is known."""
        there = self.read(JOB) or {}
        for name in job:
            if name in there and there[name] != job[name]:
                raise TaskError(
                    f"{self.url} holds the tasks of another {name} ({_short(there[name])}, and now "
                    f"{_short(job[name])}): give the former, or name another directory."
                )

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]} ..."


def job_digest(job: dict[str, Any]) -> str:
    """Tells a job from others, in the record of a task."""
    return hashlib.blake2b(json.dumps(job, sort_keys=True).encode(), digest_size=16).hexdigest()


def in_ranges(numbers: Sequence[int]) -> str:
    """Numbers as people write them: 1-3, 7."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    words = ["-".join(map(str, ends)) for ends in ranges]
    return ", ".join(words[:20]) + (f" and {len(words) - 20:,} more" if len(words) > 20 else "")
