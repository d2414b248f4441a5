"""Files that appear complete or not at all: written under a temporary name, then renamed."""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Prefix of files that a killed process may leave behind, for the next one to clear away.
PARTIAL = ".partial-"
_NO_ROOM = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
# Libraries written in Rust pass on the system's error like this, in classes of their own.
_IN_WORDS = re.compile(r"\(os error (\d+)\)")


def has_no_room(error: BaseException) -> bool:
    """Tells whether an error was caused by a full disk or a limit on the size of files."""
    in_words = _IN_WORDS.search(str(error))
    number = int(in_words[1]) if in_words else getattr(error, "errno", None)
    return number in _NO_ROOM


@contextmanager
def _named_when_full(path: Path) -> Iterator[None]:
    """Names `path` in the error of a full disk, whichever library reports it."""
    try:
        yield
    except Exception as error:
        if not has_no_room(error):
            raise
        free = shutil.disk_usage(next(one for one in path.absolute().parents if one.exists())).free
        raise OSError(
            f"{path} cannot be written ({error}; {free / 1e9:,.2f} GB are free): free some space, or raise a limit on "
            "the size of files, and run the same command again."
        ) from error


@contextmanager
def atomic_write(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Yields a temporary path beside `path`, renamed to it when the body succeeds and removed otherwise.

    Its default name is unique, so that several processes may write the same file: the last one wins.

    Raises:
        OSError: For a full disk, with the path and the free space, which the system's own message lacks.
    """
    temporary = temporary or path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with _named_when_full(path):
            yield temporary
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yields an empty directory; if the body succeeds, its files appear in `path`, which is empty or missing.

    An existing directory is kept, because it may be a mount; its files are renamed into it one by one.

    Raises:
        OSError: For a full disk, with the path and the free space, however a library reported the error.
    """
    there = path.is_dir()
    temporary = (path if there else path.parent) / f"{PARTIAL}{path.name}"
    made = _first_missing(path.parent)
    try:
        with _named_when_full(path):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            yield temporary
            for file in temporary.rglob("*"):
                sync(file)
            if there:
                for file in sorted(temporary.iterdir()):
                    file.replace(path / file.name)
                temporary.rmdir()
            else:
                temporary.rename(path)
    except BaseException:
        shutil.rmtree(made or temporary, ignore_errors=True)
        raise


def _first_missing(directory: Path) -> Path | None:
    """Finds the first missing directory on the way to a directory."""
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    return missing[-1] if missing else None


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yields a temporary path whose file is synced to disk and replaces `path` when the body succeeds.

    Symbolic links and file permissions are kept.
    """
    path = path.resolve()
    with atomic_write(path, path.with_name(PARTIAL + path.name)) as temporary:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        sync(temporary)


def atomic_write_text(path: Path, text: str) -> None:
    """Replaces the text of a file, which at any moment holds either the old or the new text in full."""
    with atomic_replace(path) as temporary:
        temporary.write_bytes(text.encode())


@contextmanager
def atomic_write_files(directory: Path, name: str, last: str = "") -> Iterator[Path]:
    """Yields an empty directory whose files are moved into `directory` when the body succeeds.

    Args:
        directory: The destination of the files.
        name: Name of the temporary directory, which a killed process leaves behind for the next one to clear away.
        last: The file to move last, which marks the set as complete.

    Raises:
        OSError: For a full disk, with the directory and the free space.
    """
    temporary = directory / f"{PARTIAL}{name}"
    try:
        with _named_when_full(directory):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            yield temporary
            for file in sorted(temporary.iterdir(), key=lambda file: file.name == last):
                file.replace(directory / file.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync(path: Path) -> None:
    """Flushes a file to disk: a rename may otherwise overtake its contents.

    Directory entries are flushed where the system can open directories; Windows cannot.
    """
    if path.is_dir():
        with suppress(OSError):
            _sync(path, os.O_RDONLY)
    else:
        _sync(path, os.O_RDWR)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
