"""An error's test asks for the names that the message must give: files, lines, options, values."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refused(kind: type | tuple[type, ...], *names: object) -> Iterator[pytest.ExceptionInfo]:
    """Expects an error whose message has one line and each of `names` as whole words."""
    with pytest.raises(kind) as caught:
        yield caught
    message = str(caught.value).rstrip()
    assert names and "\n" not in message, message
    for name in map(str, names):
        first, last = (r"\b" if re.match(r"\w", name[place]) else "" for place in (0, -1))
        assert re.search(first + re.escape(name) + last, message), f"{name!r} is not named: {message}"
