"""Processes that work without a group: those of a run while text is tokenized.

They share the small store through which their launcher lets them find each other, and poll it: no group operation
waits meanwhile, so that the group can have a short time limit. They need no port but the store's.
"""

import ctypes
import os
import pickle
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed

from vanilla_transformer.distributed.torchrun import LostProcessError, end_torchrun, outlast_torchrun

Result = TypeVar("Result")
# The meeting place of a run's processes, when its first process started the others.
MEETING = "VANILLA_TRANSFORMER_MEETING"
# That process sees at once when another ends. Whoever stops all of them with Ctrl-Z may resume the next day.
LONGEST_STOP = timedelta(days=1)
# A process that has not joined by then will not join.
LONGEST_JOINING = timedelta(minutes=10)
# Seconds: between two polls, between two signs of life, and until others have heard of a failure.
_LOOK, _PULSE, _HEARING = 0.05, 0.2, 3.0
_FAILED = "failed"


class LaunchError(ValueError):
    """Processes that cannot form one run; the message is one sentence."""


def is_main_process() -> bool:
    """Tells whether this process prepares, writes and prints for all those that a launcher started together."""
    return int(os.environ.get("RANK", "0")) == 0


class Peers:
    """The processes of a run, possibly only this one; all call the same methods in the same order.

    Args:
        seconds: Seconds without a sign of life after which a process is taken for dead.
    """

    def __init__(
        self, store: "torch.distributed.Store | None" = None, rank: int = 0, size: int = 1, *, seconds: float = 120.0
    ) -> None:
        self.rank, self.size = rank, size
        self._store, self._seconds = store, seconds
        self._calls = 0

    @property
    def is_main(self) -> bool:
        """Tells whether this is the process that prepares, writes and prints for all."""
        return self.rank == 0

    def main_process_first(self, work: Callable[[], Result]) -> Result:
        """Returns the result of `work` on each process; the main one runs first, so that others find its files."""
        key = self._next_key()
        if self.is_main:
            result = work()
            self._set(key, None)
            return result
        self._get(key, 0)
        return work()

    def broadcast_from_main(self, work: Callable[[], Result]) -> Result:
        """Returns the result of `work` on the main process, sent to all others."""
        key = self._next_key()
        if not self.is_main:
            return self._get(key, 0)
        result = work()
        self._set(key, result)
        return result

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all processes in order on the main one, and none on the others."""
        key = self._next_key()
        if self.is_main:
            return [value, *(self._get(f"{key} {other}", other) for other in range(1, self.size))]
        self._set(f"{key} {self.rank}", value)
        return []

    def check_same(self, facts: dict[str, Any], sentence: str) -> None:
        """Ends the run on all processes if one of the `facts` differs from the main process's.

        Args:
            facts: Values that must be the same, by name.
            sentence: The main process's message, with places for {process}, {name}, {theirs} and {ours}.

        Raises:
            LaunchError: Raised on the main process; the others raise SystemExit.
        """
        for other, (host, theirs) in enumerate(self.gather((socket.gethostname(), facts))):
            for name in {**facts, **theirs}:
                ours, own = facts.get(name), theirs.get(name)
                if own != ours:
                    process = f"Process {other} on {host}"
                    raise LaunchError(sentence.format(process=process, name=name, theirs=own, ours=ours))
        self.broadcast_from_main(lambda: None)

    def _next_key(self) -> str:
        self._calls += 1
        return str(self._calls)

    def _set(self, key: str, value: Any) -> None:
        if self._store is not None:
            self._store.set(key, pickle.dumps(value))  # type: ignore[arg-type]

    def _get(self, key: str, sender: int) -> Any:
        """Waits for a value that another process sets."""
        assert self._store is not None
        pulse, waited = -1, 0.0
        while not self._store.check([key]):
            if self._store.check([_FAILED]):
                self._store.add("heard", 1)
                end_torchrun()
                raise SystemExit(1)
            before, pulse = pulse, self._store.add(f"pulse {sender}", 0)
            # Not by the clock: while all are stopped by Ctrl-Z, none can give a sign.
            waited = 0.0 if pulse != before else waited + _LOOK
            if waited > self._seconds:
                raise LostProcessError(
                    f"Process {sender} has given no sign of life for {self._seconds:.0f} seconds: find out "
                    "why, and run the same command again."
                )
            time.sleep(_LOOK)
        return pickle.loads(self._store.get(key))

    def form_group(self) -> None:
        """Makes the processes a torch.distributed group that waits no longer than a peer may be silent."""
        if self._store is not None:
            limit = LONGEST_STOP if have_one_command() else timedelta(seconds=self._seconds)
            torch.distributed.init_process_group(
                store=self._store, rank=self.rank, world_size=self.size, timeout=limit
            )
            # When gloo's group ends, it waits for its threads while holding Python's lock, and one of them may wait
            # for that lock, so that it would never finish.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch.distributed.group.WORLD))

    def leave(self) -> None:
        """Ends this process's part; the main one, with which the store may end, leaves last."""
        self._set(f"left {self.rank}", None)
        for other in range(1, self.size if self.is_main else 0):
            self._get(f"left {other}", other)

    def tell_failure(self) -> None:
        """Lets the others end as well, and waits a moment for them: the store may end with this process."""
        assert self._store is not None
        outlast_torchrun()
        with suppress(torch.distributed.DistError):
            self._store.set(_FAILED, "")
            if self.is_main and have_one_command():
                return  # It ends the others.
            end = time.monotonic() + _HEARING
            while self._store.add("heard", 0) < self.size - 1 and time.monotonic() < end:
                time.sleep(_LOOK)


@contextmanager
def meet(seconds: float) -> Iterator[Peers]:
    """Finds the processes that a launcher started together with this one, if one did.

    A process that fails in the body ends them all: it alone gives the reason, and the others exit with code 1.

    Raises:
        LaunchError: Some have not joined.
        LostProcessError: Another one has ended.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Peers()
        return
    place, over = "env://", threading.Event()
    if have_one_command():
        place = f"{os.environ[MEETING]}?rank={os.environ['RANK']}&world_size={size}"
    try:
        store, rank, size = next(torch.distributed.rendezvous(place, timeout=LONGEST_JOINING))
        peers, signs = _introduced(store, rank, size, seconds, over)
    except torch.distributed.DistError as error:
        raise LaunchError(
            f"Not all {size} processes connected within {LONGEST_JOINING.total_seconds():.0f} s "
            f"({str(error).splitlines()[0]}): start that many, all with the same MASTER_ADDR and MASTER_PORT."
        ) from None
    try:
        yield peers
        if not peers.is_main:
            # The store may end with the main process as soon as this one has left, so it must not be used any more.
            over.set()
            signs.join()
        peers.leave()
    except torch.distributed.DistError as error:
        raise LostProcessError("The other processes are gone: run the same command again.") from error
    except LostProcessError:
        raise
    except Exception:
        peers.tell_failure()
        raise
    finally:
        over.set()


def have_one_command() -> bool:
    """Tells whether the run consists of the process started by the user and its companions, with its recipe."""
    return MEETING in os.environ


def _introduced(
    store: "torch.distributed.Store", rank: int, size: int, seconds: float, over: threading.Event
) -> tuple[Peers, threading.Thread]:
    """Returns the present processes with their own part of the store, and the thread of their signs of life.

    torchrun keeps its store when it restarts everything, with the entries of the earlier processes. So the main
    process invents a name for this start, and tells it to each process that asks with a word never used before.
    """
    hall = torch.distributed.PrefixStore("introductions", store)
    question = secrets.token_hex(8)
    if rank == 0:
        name = question
    else:
        hall.set(f"question {rank}", question)
        hall.wait([question], LONGEST_JOINING)
        name = hall.get(question).decode()
    shared = torch.distributed.PrefixStore(name, store)

    def give_signs() -> None:
        with suppress(torch.distributed.DistError):
            while not over.wait(_PULSE):
                shared.add(f"pulse {rank}", 1)
                for asking in (f"question {other}" for other in range(1, size if rank == 0 else 0)):
                    if hall.check([asking]):
                        hall.set(hall.get(asking).decode(), name)

    signs = threading.Thread(target=give_signs, daemon=True)
    signs.start()
    return Peers(shared, rank, size, seconds=seconds), signs
