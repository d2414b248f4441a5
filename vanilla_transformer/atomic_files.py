"""Files that appear complete or not at all: written under a temporary name, then renamed."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

# Prefix of files that a killed process may leave behind, for the next one to clear away.
PARTIAL = ".partial-"
# The errors of disks that do not support fsync.
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


@contextmanager
def atomic_directory(path: Path, name: str = "files", last: str = "config.json") -> Iterator[Path]:
    """Yields an empty directory whose files are moved into `path`, made if it is missing, when the body succeeds.

    Args:
        name: Name of the temporary directory, which a killed process leaves behind for the next one to clear away.
        last: The file to move last, which marks the set as complete.
    """
    made = [place for place in (path, *path.parents) if not place.exists()]
    temporary = path / f"{PARTIAL}{name}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.rglob("*"):
            sync(file)
        for file in sorted(temporary.iterdir(), key=lambda file: file.name == last):
            file.replace(path / file.name)
    except BaseException:
        with suppress(OSError):  # Others may have put something into its new parents meanwhile.
            for place in made:
                shutil.rmtree(place, ignore_errors=True) if place == path else place.rmdir()
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yields a temporary path whose file is synced to disk and replaces `path` when the body succeeds.

    Symbolic links and file permissions are kept.
    """
    path = path.resolve()
    temporary = path.with_name(PARTIAL + path.name)
    try:
        yield temporary
        if path.exists():
            copy_permissions(path, temporary)
        sync(temporary)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def atomic_write_text(path: Path, text: str) -> None:
    """Replaces the text of a file, which at any moment holds either the old or the new text in full."""
    with atomic_replace(path) as temporary:
        temporary.write_bytes(text.encode())


def copy_permissions(source: Path, target: Path) -> None:
    """Gives a file the permissions of another one, unless the disk refuses to change them, as many shared disks do."""
    with suppress(OSError):
        shutil.copymode(source, target)


def sync(path: Path) -> None:
    """Flushes a file to disk if the disk supports it, because a rename may otherwise overtake the file's contents.

    Directory entries are flushed where the system can open directories; Windows cannot.
    """
    with suppress(OSError) if path.is_dir() else nullcontext():
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        finally:
            os.close(descriptor)
