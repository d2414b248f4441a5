"""Several processes at one text: each takes on the next window, and hands its translations in to the main one."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed

Prepared = TypeVar("Prepared")

# Windows that each process may be ahead of what is written: a slow one must not let the others fill the memory.
AHEAD = 4
# Seconds: between two looks, between two signs of life, and without a sign until a process is taken for dead.
_LOOK, _PULSE, SILENCE = 0.05, 2.0, 60.0
_CONNECTING = timedelta(minutes=10)


class ProcessesError(OSError):
    """One of several processes has gone, or sees other files than the rest."""


class OneProcess:
    """The main process, alone."""

    is_main = True
    size = 1

    def __init__(self) -> None:
        self._claimed = 0
        self._lines = 0
        self._handed_in: dict[int, str] = {}

    def agree(self, prepare: Callable[[], Prepared], facts: Callable[[Prepared], dict[str, Any]]) -> Prepared:
        """What `prepare` gives."""
        return prepare()

    def start(self, place: dict[str, Any]) -> None:
        """Begins with the window that follows the `windows` of this place."""
        self._claimed = place["windows"]

    def await_start(self) -> dict[str, Any]:
        """What the main process began with."""
        raise AssertionError("There is nobody to wait for.")

    def claim(self) -> int:
        """The number of a window that is now this process's to translate."""
        self._claimed += 1
        return self._claimed - 1

    def may_begin(self, number: int) -> bool:
        """Whether a window is not too far ahead of what is written."""
        return True

    def hand_in(self, number: int, result: str) -> None:
        """Gives what became of a window."""
        self._handed_in[number] = result

    def collect(self, number: int) -> str | None:
        """Takes what became of a window away, if it is there."""
        return self._handed_in.pop(number, None)

    def taken(self, windows: int) -> None:
        """Tells how many windows are written."""

    def count(self, lines: int) -> int:
        """Adds to the lines done, and returns how many all processes have done since the start."""
        self._lines += lines
        return self._lines

    def wait(self) -> None:
        """Lets a moment pass in which others work."""
        raise AssertionError("There is nobody to wait for.")

    def leave(self, error: Exception | None) -> None:
        """Ends this process's part."""


class SeveralProcesses:
    """One of several processes that share a store, started by `torchrun` or `accelerate launch`.

    Results are a matter of some hundred kilobytes in minutes, so they go through the store that such processes find
    each other by: no other connection is needed, nor a disk that all can write to.
    """

    def __init__(self, store: "torch.distributed.Store", rank: int, size: int) -> None:
        self._store = torch.distributed.PrefixStore("translate", store)
        self._rank, self.size = rank, size
        self._first = 0
        self._pulses: dict[int, tuple[int, float]] = {}
        self._alone = False
        self._complaint = ""

    @property
    def is_main(self) -> bool:
        """Whether this is the process that reads options for all and writes."""
        return self._rank == 0

    def agree(self, prepare: Callable[[], Prepared], facts: Callable[[Prepared], dict[str, Any]]) -> Prepared:
        """What `prepare` gives, once all processes have found the same facts of it; the main one does it first.

        Raises:
            ProcessesError: A process has others, or cannot find them.
        """
        if not self.is_main:
            return self._agree_with_main(prepare, facts)
        prepared = prepare()
        self._store.set("facts", json.dumps(facts(prepared)))
        for other in range(1, self.size):
            while not self._store.check([f"agreed {other}"]):
                self.wait()
            if complaint := self._store.get(f"agreed {other}").decode():
                raise ProcessesError(complaint)
        return prepared

    def _agree_with_main(
        self, prepare: Callable[[], Prepared], facts: Callable[[Prepared], dict[str, Any]]
    ) -> Prepared:
        while not self._store.check(["facts"]):
            time.sleep(_LOOK)
        theirs, complaint = json.loads(self._store.get("facts")), ""
        try:
            prepared = prepare()
            ours = facts(prepared)
            for name in {**theirs, **ours}:
                if ours.get(name) != theirs.get(name):
                    raise ProcessesError(
                        f"Process {self._rank} on {socket.gethostname()} sees another {name} than the main process "
                        f"({ours.get(name)}, and there {theirs.get(name)}): give all the same command and files."
                    )
        except Exception as error:
            complaint = str(error) or type(error).__name__
            raise
        finally:
            self._store.set(f"agreed {self._rank}", complaint)
        return prepared

    def start(self, place: dict[str, Any]) -> None:
        """Lets all processes begin with the window that follows the `windows` of this place."""
        self._first = place["windows"]
        self.taken(self._first)
        self._store.set("start", json.dumps(place))

    def await_start(self) -> dict[str, Any]:
        """What the main process says once it is sure that there is something to do."""
        while not self._store.check(["start"]):
            time.sleep(_LOOK)
        place = json.loads(self._store.get("start"))
        self._first = place["windows"]
        return place

    def claim(self) -> int:
        """The number of a window that is now this process's to translate."""
        return self._first + self._store.add("claimed", 1) - 1

    def may_begin(self, number: int) -> bool:
        """Whether a window is not too far ahead of what is written."""
        return number < int(self._store.get("taken")) + AHEAD * self.size

    def hand_in(self, number: int, result: str) -> None:
        """Gives what became of a window to the main process."""
        self._store.set(f"window {number}", result)

    def collect(self, number: int) -> str | None:
        """Takes what became of a window away, if it is there."""
        name = f"window {number}"
        if not self._store.check([name]):
            return None
        result = self._store.get(name).decode()
        self._store.delete_key(name)
        return result

    def taken(self, windows: int) -> None:
        """Tells the others how many windows are written."""
        self._store.set("taken", str(windows))

    def count(self, lines: int) -> int:
        """Adds to the lines done, and returns how many all processes have done since the start."""
        return self._store.add("lines", lines)

    def wait(self) -> None:
        """Lets a moment pass; the main process looks whether the others are still there.

        Raises:
            ProcessesError: One has given no sign of life for a minute, or all have left without doing their part.
        """
        time.sleep(_LOOK)
        if not self.is_main:
            return
        if self._alone:  # Since the look before this one, so that what they handed in last has been collected.
            raise ProcessesError(self._complaint or "Another process found less in the input than the main one.")
        self._look_for_others()

    def leave(self, error: Exception | None) -> None:
        """Ends this process's part, which `error` may have cut short; the main process leaves last."""
        if not self.is_main:
            self._store.set(f"left {self._rank}", str(error or ""))
            return
        self._look_for_others()
        while not self._alone:
            time.sleep(_LOOK)
            self._look_for_others()

    def _look_for_others(self) -> None:
        now = time.monotonic()
        here = []
        for other in range(1, self.size):
            if self._store.check([f"left {other}"]):
                self._complaint = self._complaint or self._store.get(f"left {other}").decode()
                continue
            here.append(other)
            pulse = self._store.add(f"pulse {other}", 0)
            before, since = self._pulses.get(other, (-1, now))
            self._pulses[other] = (pulse, since if pulse == before else now)
            if now - self._pulses[other][1] > SILENCE:
                raise ProcessesError(
                    f"Process {other} has given no sign of life for {SILENCE:.0f} seconds: "
                    "see what became of it, and start all again."
                )
        self._alone = not here

    def give_signs(self, until: threading.Event) -> None:
        """Tells the main process again and again that this one lives."""
        with suppress(torch.distributed.DistError):
            while not until.wait(_PULSE):
                self._store.add(f"pulse {self._rank}", 1)


def work_together(
    lead: Callable[[OneProcess | SeveralProcesses], object],
    take_part: Callable[[OneProcess | SeveralProcesses], object],
) -> None:
    """Has the main process of those that a launcher started together, or the only one, lead, and the others take part.

    Raises:
        ProcessesError: The other processes are gone.
    """
    with _join_processes() as processes:
        (lead if processes.is_main else take_part)(processes)


@contextmanager
def _join_processes() -> Iterator[OneProcess | SeveralProcesses]:
    """Finds the processes that a launcher started together with this one, if one did."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield OneProcess()
        return
    over = threading.Event()
    try:
        store, rank, size = next(torch.distributed.rendezvous("env://", timeout=_CONNECTING))
        processes = SeveralProcesses(store, rank, size)
        signs = threading.Thread(target=processes.give_signs, args=(over,), daemon=True)
        signs.start()
        try:
            yield processes
        finally:
            over.set()
            signs.join()
    except torch.distributed.DistError as error:
        raise ProcessesError("The other processes are gone: start all again.") from error
