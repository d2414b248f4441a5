"""Duties of a process to the torchrun that started it: to end with it, and to say why it failed."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# From Linux's sys/prctl.h.
_PR_SET_PDEATHSIG = 1


class LostProcessError(OSError):
    """Another process of the run has died or hangs."""


def is_worker() -> bool:
    """Tells whether torchrun, or `accelerate launch`, which works the same way, started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def end_with_parent() -> None:
    """Has the system kill this process when its parent is gone, on Linux; does nothing elsewhere.

    torchrun's workers have sessions of their own: when it is killed, nothing else would end them.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run_worker(work: Callable[[], None]) -> None:
    """Does the work and ends with torchrun, which can report a failure, and restarts only where that may help."""
    if not is_worker():
        work()
        return
    end_with_parent()
    from torch.distributed.elastic.multiprocessing.errors import record

    try:
        record(work)()
    except (OSError, ValueError) as error:
        if not isinstance(error, LostProcessError):
            end_torchrun()
        raise


def end_torchrun() -> None:
    """Asks the parent torchrun to end if it would restart everything: the mistake would remain."""
    if is_worker() and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0:
        outlast_torchrun()
        os.kill(os.getppid(), signal.SIGTERM)


def outlast_torchrun() -> None:
    """Lets this process, which is about to end, give its reason before torchrun, also about to end, kills it."""
    if is_worker():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


@contextmanager
def explain_lost_processes() -> Iterator[None]:
    """Turns an error of gloo or NCCL about silent processes in its body into one that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if not _comes_from_others(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise LostProcessError(
            "Another process of this run has died or hangs: see the first failure that torchrun reports, "
            f"and run the same command again to continue from the last checkpoint. ({reason})"
        ) from error


def _comes_from_others(error: BaseException | None) -> bool:
    """Tells whether an error or its cause says that other processes did not answer."""
    import torch

    while error is not None:
        words = str(error).lower()
        if isinstance(error, torch.distributed.DistError):
            return True
        if isinstance(error, RuntimeError) and any(name in words for name in ("gloo", "nccl", "connection")):
            return True
        error = error.__cause__ or error.__context__
    return False
