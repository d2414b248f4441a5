"""Progress on standard error: a bar in a terminal, occasional lines in a log, both with the time left."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

from tqdm import tqdm

# Seconds until the first progress line in a log, and the maximum between two.
FIRST_LINE, MAX_SILENCE = 10.0, 600.0


class ProgressLines(tqdm):
    """Lines for a log: the first after some seconds, then whenever the elapsed time has grown by a tenth."""

    next_line = FIRST_LINE

    def __init__(self, **settings: object) -> None:
        form = "{n_fmt} of {total_fmt}{unit}, {rate_fmt}, {elapsed} elapsed, {remaining} left"
        super().__init__(**settings, delay=FIRST_LINE, miniters=1, leave=False, bar_format=form)

    def display(self, *_: object, **__: object) -> None:
        """Prints a line if it is time for one, where a bar would be drawn anew or taken away at its end."""
        elapsed = self.format_dict["elapsed"]
        if elapsed >= self.next_line or self.disable:
            print(self, file=sys.stderr, flush=True)
            self.next_line = elapsed + min(max(FIRST_LINE, elapsed / 10), MAX_SILENCE)

    def clear(self, *_: object, **__: object) -> None:
        """Leaves the lines where they are, where a bar would make room for other output."""


@contextlib.contextmanager
def progress_bar(
    unit: str,
    *,
    total: int | Callable[[], int | None] | None = None,
    done: int = 0,
) -> Iterator[tqdm]:
    """Shows progress on standard error: as a bar in a terminal, elsewhere as lines, for work of more than seconds.

    Args:
        unit: Name of the items counted, in the plural.
        total: Number of items, or a function that counts them in the background.
        done: Number of items done before.
    """
    # Rate and time left come from the mean since the start.
    settings: dict[str, object] = {"unit": f" {unit}", "initial": done, "smoothing": 0}
    progress = tqdm(**settings, dynamic_ncols=True) if sys.stderr.isatty() else ProgressLines(**settings)

    def count() -> None:
        progress.total = total() if callable(total) else total
        progress.refresh()

    counting = threading.Thread(target=count, daemon=True)
    counting.start()
    counting.join(0.5)  # Small files are counted before the first line is done.
    with progress:
        yield progress
