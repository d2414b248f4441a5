"""Progress on standard error, with the time left: a bar in a terminal; in a log one a minute."""

import sys

from tqdm import tqdm


def progress_bar(unit: str, *, total: int | None = None, done: int = 0) -> tqdm:
    """Shows progress on standard error; where that is no terminal, only that of work of more than a minute.

    Args:
        unit: Name of the items counted, in the plural.
        done: Number of items done before.
    """
    rare = {} if sys.stderr.isatty() else {"delay": 60, "mininterval": 60, "maxinterval": 60}
    # Rate and time left come from the mean since the start.
    return tqdm(total=total, unit=f" {unit}", initial=done, smoothing=0, dynamic_ncols=True, **rare)
