"""Progress on standard error, with the time left: a bar in a terminal; in a log one a minute."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tqdm import tqdm


@contextlib.contextmanager
def progress_bar(
    unit: str,
    *,
    total: int | Callable[[], int | None] | None = None,
    done: int = 0,
) -> Iterator[tqdm]:
    """Shows progress on standard error; where that is no terminal, only that of work of more than a minute.

    Args:
        unit: Name of the items counted, in the plural.
        total: Number of items, or a function that counts them in the background.
        done: Number of items done before.
    """
    rare: dict[str, Any] = {} if sys.stderr.isatty() else {"delay": 60, "mininterval": 60, "maxinterval": 60}
    # Rate and time left come from the mean since the start.
    progress = tqdm(unit=f" {unit}", initial=done, smoothing=0, dynamic_ncols=True, **rare)

    def count() -> None:
        progress.total = total() if callable(total) else total
        if not rare:
            progress.refresh()

    counting = threading.Thread(target=count, daemon=True)
    counting.start()
    counting.join(0.5)  # Small files are counted before the first line is done.
    with progress:
        yield progress
