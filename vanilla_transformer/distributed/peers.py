"""Processes that do without a group: those of a run while text becomes tokens, and those of an evaluation.

They share the small store by which their launcher lets them find each other, and poll it: no operation of a group
waits meanwhile, so that the group can have a short time limit. No other port than the store's is needed.
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
# Where the first process of a run has its others meet, which it has started itself.
MEETING = "VANILLA_TRANSFORMER_MEETING"
# That one sees at once when another ends. Whoever stops all, by Ctrl-Z, may go on with them the next day.
LONGEST_STOP = timedelta(days=1)
# A process that has not come by then does not come any more.
LONGEST_JOINING = timedelta(minutes=10)
# Seconds: between two looks, between two signs of life, and until others have heard that one has failed.
_LOOK, _PULSE, _HEARING = 0.05, 0.2, 3.0
_FAILED = "failed"


class LaunchError(ValueError):
    """Processes that cannot make one run, said in one sentence."""


def is_main_process() -> bool:
    """Tells whether this is the process that prepares, writes and speaks for all that a launcher started together."""
    return int(os.environ.get("RANK", "0")) == 0


class Peers:
    """The processes of a run, which may be this one alone; all call the same methods in the same order.

    Args:
        seconds: How long a process may give no sign of life until it is taken for dead.
    """

    def __init__(
        self, store: "torch.distributed.Store | None" = None, rank: int = 0, size: int = 1, *, seconds: float = 120.0
    ) -> None:
        self.rank, self.size = rank, size
        self._store, self._seconds = store, seconds
        self._calls = 0

    @property
    def is_main(self) -> bool:
        """Tells whether this is the process that prepares, writes and speaks for all."""
        return self.rank == 0

    def main_process_first(self, work: Callable[[], Result]) -> Result:
        """The result of `work` on every process; the main one does it first, so that the others find what it wrote."""
        key = self._next_key()
        if self.is_main:
            result = work()
            self._set(key, None)
            return result
        self._get(key, 0)
        return work()

    def broadcast_from_main(self, work: Callable[[], Result]) -> Result:
        """The result of `work` on the main process, sent to all others."""
        key = self._next_key()
        if not self.is_main:
            return self._get(key, 0)
        result = work()
        self._set(key, result)
        return result

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes in their order on the main one, and on the others none."""
        key = self._next_key()
        if self.is_main:
            return [value, *(self._get(f"{key} {other}", other) for other in range(1, self.size))]
        self._set(f"{key} {self.rank}", value)
        return []

    def check_same(self, facts: dict[str, Any], sentence: str) -> None:
        """Ends the run on all processes if one has another value of one of the `facts` than the main process.

        Args:
            facts: What must be the same, by its name.
            sentence: What the main process says then, with places for {process}, {name}, {theirs} and {ours}.

        Raises:
            LaunchError: On the main process; on the others SystemExit.
        """
        key = self._next_key()
        if not self.is_main:
            self._set(f"{key} {self.rank}", (socket.gethostname(), facts))
            self._get(key, 0)
            return
        for other in range(1, self.size):
            host, theirs = self._get(f"{key} {other}", other)
            for name in facts:
                if theirs[name] != facts[name]:
                    process = f"Process {other} on {host}"
                    raise LaunchError(
                        sentence.format(process=process, name=name, theirs=theirs[name], ours=facts[name])
                    )
        self._set(key, None)

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
            # Not by the clock: while all are stopped, by Ctrl-Z, nobody can give a sign.
            waited = 0.0 if pulse != before else waited + _LOOK
            if waited > self._seconds:
                raise LostProcessError(
                    f"Process {sender} has given no sign of life for {self._seconds:.0f} seconds: "
                    "see what became of it, and give the same command again."
                )
            time.sleep(_LOOK)
        return pickle.loads(self._store.get(key))

    def form_group(self) -> None:
        """Makes the processes a group of torch.distributed, in which none waits longer than a peer may be silent."""
        if self._store is not None:
            limit = LONGEST_STOP if have_one_command() else timedelta(seconds=self._seconds)
            torch.distributed.init_process_group(
                store=self._store, rank=self.rank, world_size=self.size, timeout=limit
            )
            # The end of gloo's group waits for its threads without letting go of Python's lock, and for that lock one
            # of them may wait: so it never comes to its end.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch.distributed.group.WORLD))

    def give_sign(self) -> None:
        """Tells the others that this process lives."""
        assert self._store is not None
        self._store.add(f"pulse {self.rank}", 1)

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

    Whoever fails within the block ends all: it alone says why, and the others exit with code 1.

    Raises:
        LaunchError: Not all have come.
        LostProcessError: Another one is gone.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Peers()
        return
    over = threading.Event()
    try:
        store, rank, size = next(torch.distributed.rendezvous(_meeting_place(), timeout=LONGEST_JOINING))
        peers, signs = _introduced(store, rank, size, seconds, over)
    except torch.distributed.DistError as error:
        raise LaunchError(
            f"Not all {size} processes have met within {LONGEST_JOINING.total_seconds():.0f} s "
            f"({str(error).splitlines()[0]}): start as many, all with the same MASTER_ADDR and MASTER_PORT."
        ) from None
    try:
        yield peers
        if not peers.is_main:
            # The store may end with the main process as soon as this one has left: it must not be asked any more.
            over.set()
            signs.join()
        peers.leave()
    except torch.distributed.DistError as error:
        raise LostProcessError("The other processes are gone: give the same command again.") from error
    except LostProcessError:
        raise
    except Exception:
        peers.tell_failure()
        raise
    finally:
        over.set()


def have_one_command() -> bool:
    """Tells whether the run consists of the process that the user started and its companions, with its recipe."""
    return MEETING in os.environ


def _meeting_place() -> str:
    if have_one_command():
        return f"{os.environ[MEETING]}?rank={os.environ['RANK']}&world_size={os.environ['WORLD_SIZE']}"
    return "env://"


def _introduced(
    store: "torch.distributed.Store", rank: int, size: int, seconds: float, over: threading.Event
) -> tuple[Peers, threading.Thread]:
    """The processes that are here now, with a part of the store to themselves, and signs of life until they part.

    torchrun keeps its store when it starts all again, and in it what those before have set. So the main process
    makes up a name for this time, and tells it to whoever asks with a word that nobody has asked with before.
    """
    hall = torch.distributed.PrefixStore("introductions", store)
    question = secrets.token_hex(8)
    if rank == 0:
        name = question
    else:
        hall.set(f"question {rank}", question)
        hall.wait([question], LONGEST_JOINING)
        name = hall.get(question).decode()
    peers = Peers(torch.distributed.PrefixStore(name, store), rank, size, seconds=seconds)

    def give_signs() -> None:
        with suppress(torch.distributed.DistError):
            while not over.wait(_PULSE):
                peers.give_sign()
                for asking in (f"question {other}" for other in range(1, size if rank == 0 else 0)):
                    if hall.check([asking]):
                        hall.set(hall.get(asking).decode(), name)

    signs = threading.Thread(target=give_signs, daemon=True)
    signs.start()
    return peers, signs
