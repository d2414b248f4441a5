"""The cores that this process may use, and how its threads wait for each other, for all commands alike."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

# Number of turns that a thread spins before it sleeps. With libgomp's own 300,000 it keeps a core busy while the
# thread it waits for has lost its own to another program: training then nearly stands still. Decoding asks for free
# cores and may spin longer: 20,000 turns cost it 1% of its speed, 5,000 cost 9%.
TRAINING_SPINS, SPINS = 5_000, 20_000
# The id by which workers know the launcher of `train` itself, which gives each its threads.
OWN_LAUNCHER = "vanilla_transformer"
_ROOT = Path("/")


def prepare_threads(spins: int = SPINS) -> None:
    """Sets the number of threads and how they wait; the user's own settings are kept.

    The libraries read these variables once, when torch is loaded; child processes inherit them.
    """
    if not _asked():
        os.environ["OMP_NUM_THREADS"] = str(own_threads())
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", str(spins))


def own_threads() -> int:
    """Returns this process's threads: OMP_NUM_THREADS, or its share of the cores among the launcher's processes."""
    return _asked() or max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _asked() -> int:
    """Returns the value of OMP_NUM_THREADS, 0 if unset; the 1 that torchrun sets counts as unset."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    by_torchrun = first == "1" and os.environ.get("TORCHELASTIC_RUN_ID", OWN_LAUNCHER) != OWN_LAUNCHER
    return int(first) if first.isdecimal() and not by_torchrun else 0


def usable_cores(root: Path = _ROOT) -> int:
    """Returns the number of cores of the machine, or fewer if affinity or a container's quota limits them.

    The files of the system, which tell the quota, are below `root`.
    """
    # Windows and macOS do not report which cores a process may use.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min([cores, *_quotas(root)])))


def _quotas(root: Path) -> Iterator[float]:
    """Yields the processor quotas, in cores, of the control groups around this process."""
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in groups:
        # Version 2 of control groups has one tree for everything; version 1 has one for the processor.
        if not controllers or "cpu" in controllers.split(","):
            tree = root / "sys/fs/cgroup" / controllers
            # Inside a container the tree's root is its own group, whatever the path says.
            own = tree / path.lstrip("/")
            yield from (_quota(group) for group in (own, *own.parents) if group.is_relative_to(tree))


def _quota(group: Path) -> float:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        cores = float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):  # Including "max".
        return math.inf
    return cores if cores > 0 else math.inf
