"""Progress on standard error: a bar in a terminal, occasional lines in a log, both with the time left."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

# Seconds until the first progress line in a log, and the maximum between two.
FIRST_LINE, LONGEST_SILENCE = 10.0, 600.0


@contextlib.contextmanager
def progress_bar(
    unit: str,
    *,
    total: int | Callable[[], int | None] | None = None,
    done: int = 0,
    in_the_way: bool = False,
) -> "Iterator[Progress]":
    """Shows progress on standard error: as a bar in a terminal, elsewhere as lines, for work of more than seconds.

    Args:
        unit: Name of the items counted, in the plural.
        total: Number of items, or a function that counts them in the background.
        done: Number of items done before.
        in_the_way: Whether lines are typed or printed at the same terminal.
    """
    progress: Progress = Progress()
    if not sys.stderr.isatty():
        progress = ProgressLines(unit, done)
    elif not in_the_way:
        from tqdm import tqdm

        # Rate and time left come from the mean since the start.
        progress = cast(Progress, tqdm(unit=f" {unit}", initial=done, dynamic_ncols=True, smoothing=0))

    def count() -> None:
        progress.total = total() if callable(total) else total
        progress.refresh()

    counting = threading.Thread(target=count, daemon=True)
    counting.start()
    counting.join(0.5)  # Small files are counted before the first line is done.
    try:
        yield progress
    finally:
        progress.close()


class Progress:
    """Progress that is not shown, with what is used of a bar of tqdm.

    Attributes:
        total: Number of items, if known.
    """

    total: int | None = None

    def refresh(self) -> None:
        """Shows it as it now is."""

    def update(self, count: int) -> None:
        """Adds to the number done."""

    def close(self) -> None:
        """Ends the progress."""


class ProgressLines(Progress):
    """Lines for a log: the first after some seconds, then whenever the elapsed time has grown by a tenth."""

    def __init__(self, unit: str, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit, self._before, self._done = unit, done, 0
        self._printed = False
        self._clock = clock
        self._start = clock()
        self._next = FIRST_LINE

    def update(self, count: int) -> None:
        """See `Progress`."""
        self._done += count
        seconds = self._clock() - self._start
        if seconds >= self._next:
            self._next = seconds + min(max(FIRST_LINE, seconds / 10), LONGEST_SILENCE)
            self._print(seconds)

    def close(self) -> None:
        """See `Progress`; the last line gives the total, if there was one before."""
        if self._printed:
            self._print(self._clock() - self._start)

    def _print(self, seconds: float) -> None:
        from tqdm import tqdm

        self._printed = True
        now = self._before + self._done
        of_all = "" if self.total is None else f" of {self.total:,}"
        rate = self._done / seconds if seconds else 0.0
        each = self._unit.partition(" of ")[0]
        line = f"{now:,}{of_all} {self._unit}, {rate:,.1f} {each}/s, {tqdm.format_interval(seconds)} elapsed"
        if self.total is not None and rate and now < self.total:
            line += f", {tqdm.format_interval((self.total - now) / rate)} left"
        print(line, file=sys.stderr, flush=True)
