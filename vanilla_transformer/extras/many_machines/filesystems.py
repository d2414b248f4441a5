"""Places for data: this disk, or any that fsspec knows and has the package for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec


def filesystem_of(url: str) -> tuple[Any, str]:
    """Returns the file system of a path or URL, and the path in it.

    Raises:
        OSError: Its package is missing, or there is no such kind of place.
    """
    try:
        return fsspec.url_to_fs(url)
    except (ImportError, ValueError) as error:
        kind = url.partition("://")[0]
        raise OSError(f"{url} cannot be reached: {kind}:// needs a package that is not installed ({error})") from error


@contextmanager
def naming(url: str) -> Iterator[None]:
    """Adds the path or URL to an OSError that lacks it, such as those of remote file systems."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or url in str(error):
            raise
        reason = (error.strerror or str(error) or type(error).__name__).rstrip(".")
        if error.errno is None:
            raise type(error)(f"{url}: {reason}") from error
        raise OSError(error.errno, reason, url) from error
