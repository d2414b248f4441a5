"""Progress and messages on standard error: a bar in a terminal; in a log, one line per minute."""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm


def is_terminal(stream: object) -> bool:
    """Returns True if a stream is a terminal. It may be None, or an object without `isatty` from another program."""
    return bool(getattr(stream, "isatty", bool)())


def show(message: str) -> None:
    """Prints a message on standard error, without breaking a progress bar. A failing stream does not end the work."""
    from tqdm import tqdm

    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            (tqdm.write if is_terminal(sys.stderr) else print)(message, file=sys.stderr)


def progress_bar(unit: str, *, total: int | None = None, done: int = 0) -> "tqdm":
    """Shows progress on standard error. If that is not a terminal, only work of more than a minute is shown.

    Args:
        unit: Name of the items counted, in the plural.
        done: Number of items done before.
    """
    from tqdm import tqdm

    rare = {} if is_terminal(sys.stderr) else {"delay": 60, "mininterval": 60, "maxinterval": 60}
    # Rate and time left come from the mean since the start.
    return tqdm(
        total=total,
        unit=f" {unit}",
        initial=done,
        smoothing=0,
        dynamic_ncols=True,
        disable=sys.stderr is None,
        **rare,
    )
