"""The "did you mean" of error messages."""

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str], cutoff: float = 0.4) -> str | None:
    """Returns the known name most similar to `name`, or None if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error message about an unknown name: `, did you mean 'x'?`, or nothing."""
    suggestion = closest(name, known)
    return f", did you mean {suggestion!r}?" if suggestion else ""
