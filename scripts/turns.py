"""Contestants that take turns, each a process that waits while the others are measured; and how figures are shown."""

import multiprocessing
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

SECONDS_TO_LEAVE = 5
# Spawned processes begin empty, so that the memory of each is its own.
PROCESSES = multiprocessing.get_context("spawn")


class Contest:
    """A process that answers each question, and before the first one says that it is ready."""

    def __init__(self, name: str, take_part: Callable[..., None], *arguments: object) -> None:
        self.name = name
        self.connection: Connection
        self.connection, theirs = PROCESSES.Pipe()
        self.process: SpawnProcess = PROCESSES.Process(target=take_part, args=(name, *arguments, theirs))
        self.process.start()
        theirs.close()

    def answer(self) -> dict[str, Any]:
        """Returns the process's next answer, or `failed` with the reason if it has ended."""
        try:
            answer: dict[str, Any] = self.connection.recv()
            return answer
        except EOFError:
            self.process.join()
            return {"failed": f"ended with the code {self.process.exitcode}"}

    def ask(self, question: object) -> dict[str, Any]:
        """Returns the answer to a question."""
        with suppress(BrokenPipeError):  # The answer explains why.
            self.connection.send(question)
        return self.answer()

    def end(self) -> None:
        """Ends the process, in order if it waits for a question, otherwise by a kill."""
        with suppress(OSError):
            self.connection.send(None)
        self.process.join(SECONDS_TO_LEAVE)
        self.process.kill()
        self.process.join()


def spread(values: Sequence[float], decimals: int) -> str:
    """Formats the median, and of several values the least and the largest."""
    text = f"{statistics.median(values):,.{decimals}f}"
    return text if len(values) == 1 else f"{text} ({min(values):,.{decimals}f} to {max(values):,.{decimals}f})"


def cells(values: Sequence[object]) -> str:
    """Formats a line of a Markdown table."""
    return f"| {' | '.join(map(str, values))} |"


def report(sentence: str) -> None:
    """Prints progress to standard error."""
    print(sentence, file=sys.stderr, flush=True)
