"""Files that appear complete or not at all: written under a temporary name, then renamed."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Prefix of what a killed process may leave behind, for the next one to clear away.
PARTIAL = ".partial-"
_NO_ROOM = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def has_no_room(error: BaseException) -> bool:
    """Tell whether an error was caused by a full disk."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


@contextmanager
def atomic_write(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Give a temporary path beside `path`, renamed to it once the block ends well and removed otherwise.

    Its default name is unique, so that several processes may write the same file: the last one wins.

    Raises:
        OSError: For a full disk with the path and the free space, which the system's own message lacks.
    """
    temporary = temporary or path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if not has_no_room(error):
            raise
        assert error.errno is not None
        raise OSError(
            f"{path} cannot be written ({os.strerror(error.errno)}; {shutil.disk_usage(path.parent).free / 1e9:,.2f} "
            "GB are free): free some space and run the same command again."
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Give a temporary path whose file replaces `path` once the block ends well and it is synced to disk.

    Symbolic links and file permissions are kept.
    """
    path = path.resolve()
    with atomic_write(path, path.with_name(PARTIAL + path.name)) as temporary:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        sync(temporary)


def atomic_write_text(path: Path, text: str) -> None:
    """Replace the text of a file, which at any moment holds the old text or the new one in full."""
    with atomic_replace(path) as temporary:
        temporary.write_bytes(text.encode())


@contextmanager
def atomic_write_files(directory: Path, name: str, last: str = "") -> Iterator[Path]:
    """Give a temporary directory whose files are moved into `directory` once the block ends well.

    Args:
        directory: Where the files belong.
        name: Of the temporary directory, which a killed process leaves behind for the next one to clear away.
        last: The file to move last, which says that all are there.
    """
    temporary = directory / f"{PARTIAL}{name}"
    yield temporary
    for file in sorted(temporary.iterdir(), key=lambda file: file.name == last):
        file.replace(directory / file.name)
    shutil.rmtree(temporary)


def sync(path: Path) -> None:
    """Flush a file to disk: a rename may otherwise overtake its contents.

    The entries of a directory are flushed where the system can open directories, which Windows cannot.
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
