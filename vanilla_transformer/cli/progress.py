"""What a user sees on standard error while lines go by."""

import contextlib
import gzip
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

# Seconds until the first line of progress in a log, and the most between two.
FIRST_LINE, LONGEST_SILENCE = 10.0, 600.0
_CHUNK = 1 << 20


@contextlib.contextmanager
def progress_bar(
    asked: bool, unit: str, *, total: int | Callable[[], int | None] | None = None, done: int = 0
) -> "Iterator[Progress]":
    """Progress on standard error, where that is a terminal and nobody types, or where it was asked for.

    A bar on a terminal, and from time to time a line where standard error goes to a file.

    Args:
        total: How many there are, or what counts them, which happens beside the work.
        done: How many were done before.
    """
    is_terminal = sys.stderr.isatty()
    progress: Progress = Progress()
    if is_terminal and (asked or sys.stdin is None or not sys.stdin.isatty()):
        progress = ProgressBar(unit, done)
    elif asked:
        progress = ProgressLines(unit, done)
    counting = threading.Thread(target=progress.set_total, args=(total,), daemon=True)
    counting.start()
    counting.join(0.5)  # A small file is counted before the first line is done.
    try:
        yield progress
    finally:
        progress.close()


class Progress:
    """Progress that nobody looks at."""

    def set_total(self, total: int | Callable[[], int | None] | None) -> None:
        """Tells how many there are, or counts them."""

    def update(self, count: int) -> None:
        """So many more are done."""

    def reach(self, done: int) -> None:
        """So many are done since the start."""

    def close(self) -> None:
        """Nothing more comes."""


class ProgressBar(Progress):
    """One line of a terminal, with the rate since the start: the next moment's says little about the rest."""

    def __init__(self, unit: str, done: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(unit=f" {unit}", initial=done, dynamic_ncols=True, smoothing=0)
        self._before = done

    def set_total(self, total: int | Callable[[], int | None] | None) -> None:
        """See `Progress`, as for all that follows."""
        self._bar.total = total() if callable(total) else total
        self._bar.refresh()

    def update(self, count: int) -> None:
        """See `Progress`."""
        self._bar.update(count)

    def reach(self, done: int) -> None:
        """See `Progress`."""
        self._bar.update(self._before + done - self._bar.n)

    def close(self) -> None:
        """See `Progress`."""
        self._bar.close()


class ProgressLines(Progress):
    """Lines for a log: the first after some seconds, later ones when a tenth more of the time has passed."""

    def __init__(self, unit: str, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit, self._before, self._done = unit, done, 0
        self._total: int | None = None
        self._clock = clock
        self._start = clock()
        self._next = FIRST_LINE

    def set_total(self, total: int | Callable[[], int | None] | None) -> None:
        """See `Progress`, as for all that follows."""
        self._total = total() if callable(total) else total

    def update(self, count: int) -> None:
        """See `Progress`."""
        self.reach(self._done + count)

    def reach(self, done: int) -> None:
        """See `Progress`."""
        self._done = done
        seconds = self._clock() - self._start
        if seconds >= self._next:
            self._next = seconds + min(max(FIRST_LINE, seconds / 10), LONGEST_SILENCE)
            self._print(seconds)

    def close(self) -> None:
        """See `Progress`; the last line says what it came to."""
        self._print(self._clock() - self._start)

    def _print(self, seconds: float) -> None:
        from tqdm import tqdm

        now = self._before + self._done
        of_all = "" if self._total is None else f" of {self._total:,}"
        rate = self._done / seconds if seconds else 0.0
        line = f"{now:,}{of_all} {self._unit}, {rate:,.1f} {self._unit}/s, {tqdm.format_interval(seconds)} passed"
        if self._total is not None and rate and now < self._total:
            line += f", {tqdm.format_interval((self._total - now) / rate)} left"
        print(line, file=sys.stderr, flush=True)


def count_lines(path: Path | None) -> int | None:
    """The lines of a file, plain or .gz, or of a file that is standard input; None where they cannot be counted."""
    lines, last = 0, b"\n"
    with contextlib.suppress(OSError, EOFError, zlib.error):
        for chunk in _chunks(path):
            lines += chunk.count(b"\n")
            last = chunk
        return lines + (not last.endswith(b"\n"))
    return None


def _chunks(path: Path | None) -> Iterator[bytes]:
    if path is None:
        place = os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR)
        # Whoever reads the lines goes on from where that one is.
        while chunk := os.pread(sys.stdin.fileno(), _CHUNK, place):
            place += len(chunk)
            yield chunk
        return
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
