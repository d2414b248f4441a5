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
_REMEDIES = {errno.EFBIG: "raise the limit on the size of files (ulimit -f)"}
_NO_ROOM = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
# Libraries written in Rust pass on the system's error like this, in classes of their own.
_IN_WORDS = re.compile(r"\(os error (\d+)\)")


def has_no_room(error: BaseException) -> bool:
    """Tell whether an error was caused by a full disk."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def disk_error(error: BaseException, directory: Path) -> OSError | None:
    """Find the file system's error behind an error of code that writes to a directory; None if there is none.

    If a library does not pass it on, as torch does not, another write to the directory gets the same error.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno and not isinstance(cause, ConnectionError | TimeoutError):
            return cause
        if not isinstance(cause, OSError) and (found := _IN_WORDS.search(str(cause))):
            return OSError(int(found[1]), os.strerror(int(found[1])))
        cause = cause.__cause__ or cause.__context__
    # These report a wrong value, however full the disk may be.
    mistaken = isinstance(error, ValueError | TypeError | LookupError | AttributeError | AssertionError)
    return _probe(directory) if isinstance(error, Exception) and not mistaken else None


def _probe(directory: Path) -> OSError | None:
    """Write beyond the end of a directory's largest file, where a limit on file sizes would show as well."""
    probe = directory / f"{PARTIAL}probe"
    try:
        end = max((file.stat().st_size for file in directory.iterdir() if file.is_file()), default=0)
        with open(probe, "wb") as file:
            file.seek(end)
            file.write(bytes(1 << 16))
    except OSError as error:
        return error
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return None


@contextmanager
def named_when_full(path: Path, place: Path) -> Iterator[None]:
    """Name `path` in the error of a disk too full for data written to `place` on its behalf."""
    try:
        yield
    except Exception as error:
        said = disk_error(error, place if place.is_dir() else place.parent)
        # Python's own messages of other errors name the file already.
        if said is None or not (has_no_room(said) or _IN_WORDS.search(str(error))):
            raise
        assert said.errno is not None
        remedy = _REMEDIES.get(said.errno, "free some space" if has_no_room(said) else "mend that")
        free = shutil.disk_usage(next(one for one in path.absolute().parents if one.exists())).free
        raise OSError(
            f"{path} cannot be written ({os.strerror(said.errno)}; {free / 1e9:,.2f} GB are free): {remedy} and run "
            "the same command again."
        ) from error


@contextmanager
def atomic_write(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path`, renamed to it when the body succeeds and removed otherwise.

    Its default name is unique, so that several processes may write the same file: the last one wins.

    Raises:
        OSError: For a full disk, with the path and the free space, which the system's own message lacks.
    """
    temporary = temporary or path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with named_when_full(path, temporary):
            yield temporary
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield an empty directory; if the body succeeds, its files appear in `path`, which is empty or missing.

    An existing directory is kept, because it may be a mount; its files are renamed into it one by one.

    Raises:
        OSError: For a full disk, with the path and the free space, however a library reported the error.
    """
    there = path.is_dir()
    temporary = (path if there else path.parent) / f"{PARTIAL}{path.name}"
    made = _first_missing(path.parent)
    try:
        with named_when_full(path, temporary):
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
    """Find the first missing directory on the way to a directory."""
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    return missing[-1] if missing else None


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yield a temporary path whose file is synced to disk and replaces `path` when the body succeeds.

    Symbolic links and file permissions are kept.
    """
    path = path.resolve()
    with atomic_write(path, path.with_name(PARTIAL + path.name)) as temporary:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        sync(temporary)


def atomic_write_text(path: Path, text: str) -> None:
    """Replace the text of a file, which at any moment holds either the old or the new text in full."""
    with atomic_replace(path) as temporary:
        temporary.write_bytes(text.encode())


@contextmanager
def atomic_write_files(directory: Path, name: str, last: str = "") -> Iterator[Path]:
    """Yield an empty directory whose files are moved into `directory` when the body succeeds.

    Args:
        directory: The destination of the files.
        name: Name of the temporary directory, which a killed process leaves behind for the next one to clear away.
        last: The file to move last, which marks the set as complete.

    Raises:
        OSError: For a full disk, with the directory and the free space.
    """
    temporary = directory / f"{PARTIAL}{name}"
    try:
        with named_when_full(directory, temporary):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            yield temporary
            for file in sorted(temporary.iterdir(), key=lambda file: file.name == last):
                file.replace(directory / file.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file to disk: a rename may otherwise overtake its contents.

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
