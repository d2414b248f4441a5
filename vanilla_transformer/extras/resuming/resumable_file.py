"""An output that is always a prefix of whole lines, with a record beside it from which it can be resumed."""

import bz2
import gzip
import hashlib
import json
import lzma
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from filelock import lock_descriptor

from vanilla_transformer.atomic_files import atomic_write_text, sync
from vanilla_transformer.cli.streams import unwritable
from vanilla_transformer.compression import suffix_of

_CHUNK = 1 << 20


class ResumeError(ValueError):
    """An output that cannot be resumed, or must not be overwritten; the message says why and what to do."""


@dataclass(frozen=True)
class ResumeState:
    """The progress of translating a file: whole chunks, and when it is finished, the rest as well.

    A whole chunk has `chunk_lines` lines, or fewer long ones; 0 if nothing has begun. `lines` counts the input's
    lines, whose hash so far is `source`; `size` is the output's in bytes, whose hash so far is `translation`.
    """

    chunk_lines: int = 0
    chunks: int = 0
    lines: int = 0
    size: int = 0
    source: str = ""
    translation: str = ""
    finished: bool = False


class ResumableFile:
    """Writes chunks of translations, in order, to a file, plain or compressed.

    After each chunk the file is on disk before the record beside it says so: however the process ends, the file begins
    with the recorded part, and the next process cuts off the rest and continues.

    Args:
        job: Settings that must be the same for a file to be resumed, by their names in messages.
        resume: Continue from the record; it then stays when everything is done, so that the same command can be
            repeated. Otherwise start over, and leave only the file.
    """

    def __init__(self, path: Path, job: dict[str, Any], *, resume: bool) -> None:
        self.path, self.record = path, record_path(path)
        self._job = job
        self._resume = resume
        self.state = ResumeState()
        self.lines = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._descriptor = -1

    def __enter__(self) -> "ResumableFile":
        if not self._resume:
            refuse_unfinished(self.path)
        recorded = _read_record(self.record) if self._resume else None
        if self._resume and recorded is None and _size(self.path):
            raise ResumeError(
                f"{self.path} exists, but without {self.record.name}, which says what it was made from: "
                "delete it, or leave out --resume to overwrite it."
            )
        if recorded is not None:
            self._same_job(recorded[0])
            self.state = recorded[1]
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as error:
            raise unwritable(self.path, error) from error
        try:
            self._lock()
            self._read_what_is_there()
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        os.close(self._descriptor)

    def begin(self, chunk_lines: int) -> None:
        """Cuts the file to the recorded part, or empties it; writing continues from there.

        Args:
            chunk_lines: Lines in a whole chunk; when resuming, those of `state`.
        """
        self.state = replace(self.state, chunk_lines=chunk_lines)
        self._remember()
        os.ftruncate(self._descriptor, self.state.size)
        os.lseek(self._descriptor, self.state.size, os.SEEK_SET)
        self.lines = self.state.lines

    def take(self, text: str, *, lines: int, source: str, whole: bool) -> None:
        """Writes the translations of a chunk, and records it if it is whole.

        Other chunks end with the readable input: they become part of a whole one once there is more.

        Args:
            lines: Number of input lines that the text translates.
            source: The hash of the input up to there.
        """
        start = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        payload = compress(text.encode(), suffix_of(self.path))
        rest = memoryview(payload)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BaseException as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, start)
            raise (unwritable(self.path, error) if isinstance(error, OSError) else error) from error
        self._digest.update(payload)
        self.lines += lines
        self.state = replace(
            self.state,
            chunks=self.state.chunks + 1,
            lines=self.lines,
            size=start + len(payload),
            source=source,
            translation=self._digest.hexdigest(),
        )
        if whole:
            self._remember()

    def finish(self) -> None:
        """Ends the input: the record notes that, or is removed."""
        if self._resume:
            self.state = replace(self.state, finished=True)
            self._remember()
            return
        os.fsync(self._descriptor)
        self.record.unlink(missing_ok=True)

    def _same_job(self, recorded: dict[str, Any]) -> None:
        for name in {**recorded, **self._job}:
            was, now = recorded.get(name), self._job.get(name)
            if was != now:
                raise ResumeError(
                    f"{self.path} was begun with another {name} ({was}, and now {now}): continue with the "
                    f"former, or delete {self.path} and {self.record} to start over."
                )

    def _lock(self) -> None:
        """Keeps out a second process, if the system can; the lock ends with the process."""
        try:
            is_free = lock_descriptor(self._descriptor, blocking=False)
        except OSError:
            return  # A file system without locks.
        if not is_free:
            raise ResumeError(f"Another process is writing {self.path}.")

    def _read_what_is_there(self) -> None:
        left = self.state.size
        while left and (chunk := os.read(self._descriptor, min(left, _CHUNK))):
            self._digest.update(chunk)
            left -= len(chunk)
        if self.state.size and (left or self._digest.hexdigest() != self.state.translation):
            raise ResumeError(
                f"{self.path} does not begin with the lines that {self.record.name} records: restore them, "
                "or delete both files to start over."
            )

    def _remember(self) -> None:
        """Replaces the record, once the data it describes is on disk."""
        try:
            os.fsync(self._descriptor)
            atomic_write_text(self.record, json.dumps({"job": self._job, "state": asdict(self.state)}, indent=1))
            sync(self.path.parent)
        except OSError as error:
            raise unwritable(self.path, error) from error


def refuse_unfinished(path: Path) -> None:
    """Raises ResumeError if an unfinished output would be overwritten."""
    recorded = _read_record(record_path(path))
    if recorded is not None and not recorded[1].finished and recorded[1].lines and _size(path):
        raise ResumeError(
            f"{path} holds the first {recorded[1].lines:,} lines of an unfinished output: continue with "
            f"--resume, or delete {record_path(path)} to start over."
        )


def record_path(path: Path) -> Path:
    """Returns the path of an output's record, beside it."""
    return path.with_name(f"{path.name}.resume")


def compress(data: bytes, suffix: str) -> bytes:
    """Compresses a part of a file of that suffix, deterministically; parts one after the other form a file."""
    if suffix == ".zst":
        import pyarrow as pa

        return cast(bytes, pa.compress(data, codec="zstd", asbytes=True))
    if suffix == ".gz":
        return gzip.compress(data, mtime=0)
    if suffix == ".bz2":
        return bz2.compress(data)
    return lzma.compress(data) if suffix else data


def _read_record(path: Path) -> tuple[dict[str, Any], ResumeState] | None:
    """Returns the settings that an output was made from and its progress; None if there is no record."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return record["job"], ResumeState(**record["state"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ResumeError(
            f"{path} is damaged: delete it, and its output will be overwritten from the start."
        ) from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
