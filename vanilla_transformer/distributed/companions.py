"""The other processes of a run on this machine's CPU, started by the process that the user started.

They compute faster than the same number of threads: processes wait for each other once per step, threads after each
product. The first of them is the user's: it alone has the terminal, writes and prints, and the others end with it,
however it ends.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from accelerate.utils import patch_environment

from vanilla_transformer.cores import own_threads
from vanilla_transformer.distributed.peers import MEETING
from vanilla_transformer.distributed.torchrun import LostProcessError, end_with_parent
from vanilla_transformer.recipe.schema import Recipe

_PARENT = "VANILLA_TRANSFORMER_PARENT"
# With at least one batch for each of this many processes, the steps are those of one process: see LEAST_BATCHES of the
# defaults. More have not been measured.
MOST_PROCESSES = 2
# In fewer steps starting another process costs as much as it gains.
LEAST_STEPS = 1_000
# Below this share of used threads, the idle ones cost more than processes gain.
LEAST_SHARE_OF_THREADS = 0.75
# Bytes of main memory per process: Python with its libraries takes half a gigabyte, a small model and its batch as
# much.
LEAST_MEMORY = 2 << 30
# Seconds for a process to end, after it has lost another one or is done.
_ENDING = 5.0


def is_launched() -> bool:
    """Tells whether a launcher or a process of ours started this one, and so decides the number of processes."""
    return any(name in os.environ for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "ACCELERATE_MIXED_PRECISION"))


def default_processes(max_steps: int | None) -> int:
    """Returns the fastest number of processes for a run on this CPU; one on an accelerator or for a short run."""
    # Other systems have not been measured.
    if sys.platform != "linux" or torch.accelerator.is_available():
        return 1
    if max_steps is not None and max_steps < LEAST_STEPS:
        return 1
    threads, memory = own_threads(), psutil.virtual_memory().total
    for number in range(min(MOST_PROCESSES, threads, memory // LEAST_MEMORY), 1, -1):
        if number * (threads // number) >= LEAST_SHARE_OF_THREADS * threads:
            return number
    return 1


def end_with_first() -> None:
    """Ends this process when the one that started it for its run is gone; does nothing if none did."""
    if _PARENT in os.environ:
        end_with_parent()
        if os.getppid() != int(os.environ[_PARENT]):
            raise SystemExit(1)


@contextmanager
def companions(number: int, recipe: Recipe, options: Sequence[str] = ()) -> Iterator[None]:
    """Starts all but the first of `number` processes that train by a recipe; the body runs as the first one.

    They meet through a file, and their group listens only on this machine.

    Raises:
        LostProcessError: One of them ended early; the message says how.
    """
    if number == 1:
        yield
        return
    threads = torch.get_num_threads()
    share = max(1, own_threads() // number)
    with tempfile.TemporaryDirectory(prefix="vanilla-transformer-") as name:
        folder = Path(name)
        (folder / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
        variables = {"WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, MEETING: (folder / "meeting").as_uri()}
        if sys.platform == "linux":
            variables["GLOO_SOCKET_IFNAME"] = "lo"
        with patch_environment(RANK=0, LOCAL_RANK=0, **variables):
            others = [_start(rank, folder, share, options) for rank in range(1, number)]
            torch.set_num_threads(share)
            try:
                yield
                _wait(others, all)
            except (LostProcessError, SystemExit) as error:
                lost = _failure(others, folder)
                if lost is None or (isinstance(error, SystemExit) and error.code != 1):
                    raise
                raise LostProcessError(lost) from error
            finally:
                for other in others:
                    other.kill()
                    other.wait()
                torch.set_num_threads(threads)


def _start(rank: int, folder: Path, threads: int, options: Sequence[str]) -> "subprocess.Popen[bytes]":
    own = {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": threads, _PARENT: os.getpid()}
    with open(folder / f"said-{rank}", "wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "vanilla_transformer", "train", str(folder / "recipe.yaml"), *options],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=os.environ | {name: str(value) for name, value in own.items()},
        )


def _wait(processes: "Sequence[subprocess.Popen[bytes]]", enough: Callable[[list[bool]], bool]) -> None:
    """Waits a moment until all of the processes have ended, or `any` of them."""
    end = time.monotonic() + _ENDING
    while not enough([process.poll() is not None for process in processes]) and time.monotonic() < end:
        time.sleep(0.05)


def _failure(processes: "Sequence[subprocess.Popen[bytes]]", folder: Path) -> str | None:
    """Describes which process ended with an error and how, None if none did."""
    _wait(processes, any)
    for rank, process in enumerate(processes, start=1):
        code = process.poll()
        if code and code < 0:
            named = -code in set(signal.Signals)  # Most signals of real time have no name.
            killer = signal.Signals(-code).name if named else f"signal {-code}"
            return (
                f"Process {rank} (of {len(processes) + 1}) was killed by {killer}: run the "
                "same command again to continue from the last checkpoint; if memory is short, --processes 1 "
                "needs less."
            )
        if code:
            lines = (folder / f"said-{rank}").read_text(encoding="utf-8", errors="replace").splitlines()
            said = lines[-1].rpartition("error: ")[2] if lines else f"exit code {code}"
            return f"Process {rank} (of {len(processes) + 1}) has failed: {said}"
    return None
