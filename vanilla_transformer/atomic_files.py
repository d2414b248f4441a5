"""Files that appear whole or not at all: written beside their place, and then renamed."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# What a process that was killed may leave behind begins so, where the next one clears it away.
PARTIAL = ".partial-"
_NO_ROOM = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def has_no_room(error: BaseException) -> bool:
    """Tell whether an error came of a full disk."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


@contextmanager
def written_beside(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Give a temporary path beside `path`, renamed to it once the block ends well and removed otherwise.

    Where no name is given for it, its name is taken by nobody else, so that several processes may write the same file:
    the last one stays.

    Raises:
        OSError: A full disk is named, which the system's own message does not.
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
            "GB are free): when there is room, give the same command again."
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Give a temporary path whose file takes the place of `path` once the block ends well, after it is on the disk.

    A link stays one, and the rights of the file stay as they are.
    """
    path = path.resolve()
    with written_beside(path, path.with_name(PARTIAL + path.name)) as temporary:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        sync(temporary)


def replace_text(path: Path, text: str) -> None:
    """Put a text into a file, where at any moment the former one or this one stands in full; see `replaced`."""
    with replaced(path) as temporary:
        temporary.write_bytes(text.encode())


def sync(path: Path) -> None:
    """Ask the system to have a file on the disk: a rename may otherwise overtake the contents.

    The names in a directory are synced where the system opens directories, as Windows does not.
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
