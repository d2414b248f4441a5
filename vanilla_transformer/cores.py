"""The cores that this process may use, and how its threads wait for each other: one answer for all commands."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

# Turns for which a thread looks for the others before it sleeps. With libgomp's own 300,000 it keeps a core busy while
# the thread that it waits for has lost its own to another program: training then nearly stands still.
SPINS = 5_000
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def prepare_threads() -> None:
    """Chooses the number of threads and their way to wait; a setting of the user's own stands.

    The libraries read these variables once, when torch is loaded; the processes that this one starts inherit them.
    """
    if not _asked():
        os.environ["OMP_NUM_THREADS"] = str(own_threads())
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def own_threads() -> int:
    """Threads for this process: what OMP_NUM_THREADS says, or its share of the cores beside others of its launcher."""
    return _asked() or max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _asked() -> int:
    """The value of OMP_NUM_THREADS, 0 if unset; the 1 that torchrun always sets counts as unset."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    by_torchrun = first == "1" and "TORCHELASTIC_RUN_ID" in os.environ
    return int(first) if first.isdecimal() and not by_torchrun else 0


def usable_cores() -> int:
    """The cores of the machine, or fewer where the affinity or a container's quota says so."""
    # Windows and macOS do not say which cores a process may use.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min([cores, *_quotas()])))


def _quotas() -> Iterator[float]:
    """The shares of the processor, in cores, that the control groups around this process have."""
    try:
        groups = [line.split(":", 2) for line in _OWN_CGROUPS.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in groups:
        # Version 2 of the system has one tree for all; version 1 one for the processor.
        if not controllers or "cpu" in controllers.split(","):
            root = _CGROUPS / controllers
            # Within a container the root is its own group, whatever the path says.
            own = root / path.lstrip("/")
            yield from (_quota(group) for group in (own, *own.parents) if group.is_relative_to(root))


def _quota(group: Path) -> float:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        cores = float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" among them.
        return math.inf
    return cores if cores > 0 else math.inf
