"""Where data may lie: this disk, or any place that fsspec knows and has the package for."""

from typing import Any

import fsspec


def filesystem_of(url: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the path in it.

    Raises:
        OSError: A package for it is missing, or there is no such kind of place.
    """
    try:
        return fsspec.url_to_fs(url)
    except (ImportError, ValueError) as error:
        kind = url.partition("://")[0]
        raise OSError(f"{url} cannot be reached, which {kind}:// needs a package for ({error})") from error
