"""Worker processes on this machine that run numbered tasks, and are restarted when they die."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from vanilla_transformer.extras.many_machines.folder import TaskError

# The most workers that may die on one task.
MOST_DEATHS = 3


class Workers:
    """Processes that receive task numbers one by one, and report when each is done.

    Args:
        command: Starts a worker, which reads a first line and then numbers, and answers each with a line of JSON.
        first_lines: The first line for each worker.
        done: Called with the answer to each finished task.
    """

    def __init__(self, command: Sequence[str], first_lines: Sequence[str], done: Callable[[dict], object]) -> None:
        self._command, self._first_lines, self._done = command, first_lines, done
        self._numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._deaths: dict[int, int] = {}
        self._failure: str | None = None
        self._lock = threading.Lock()

    def run(self, numbers: Sequence[int]) -> None:
        """Runs the tasks.

        Raises:
            TaskError: A task failed; tasks that other workers have begun are finished first.
        """
        for number in numbers:
            self._numbers.put(number)
        threads = [threading.Thread(target=self._serve, args=(line,)) for line in self._first_lines[: len(numbers)]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise TaskError(self._failure)

    def _serve(self, first_line: str) -> None:
        """Gives tasks to a worker while there are any, and replaces the worker if it dies."""
        worker = None
        try:
            while self._failure is None and (number := self._next()) is not None:
                worker = worker or self._start(first_line)
                answer = _ask(worker, number)
                if answer is None:
                    code, worker = worker.wait(), None
                    self._count_death(number, code)
                elif "error" in answer:
                    self._failure = self._failure or answer["error"]
                else:
                    with self._lock:
                        self._done(answer)
        finally:
            if worker is not None:
                assert worker.stdin is not None
                worker.stdin.close()
                worker.wait()

    def _next(self) -> int | None:
        try:
            return self._numbers.get_nowait()
        except queue.Empty:
            return None

    def _start(self, first_line: str) -> "subprocess.Popen[str]":
        worker = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert worker.stdin is not None
        worker.stdin.write(f"{first_line}\n")
        return worker

    def _count_death(self, number: int, code: int) -> None:
        with self._lock:
            self._deaths[number] = deaths = self._deaths.get(number, 0) + 1
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if deaths < MOST_DEATHS:
            print(f"The worker at task {number} has died ({how}): another takes its place.", file=sys.stderr)
            self._numbers.put(number)
        else:
            self._failure = self._failure or (
                f"Task {number} has ended {deaths} workers, the last by {how}: see the messages above, and "
                "run the same command again; finished tasks are kept."
            )


def _ask(worker: "subprocess.Popen[str]", number: int) -> dict | None:
    """Returns a worker's answer to a task, or None if the worker has died."""
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(f"{number}\n")
        worker.stdin.flush()
        return json.loads(worker.stdout.readline())
    except (OSError, ValueError):
        worker.kill()
        return None


def answer_numbers(first: Callable[[str], Callable[[int], dict]], sentence: Callable[[Exception], str]) -> None:
    """Runs a worker: prepares its work from its first line, and answers numbers until there are no more.

    Args:
        first: Returns, for the first line, a function that runs a task.
        sentence: Describes an error.
    """
    # Moves standard output to standard error: other prints must not be taken for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    do, error = None, None
    line = sys.stdin.readline()
    try:
        do = first(line)
    except Exception as failure:
        error = sentence(failure)
    for number in map(int, sys.stdin):
        answer: dict = {"error": error}
        if do is not None:
            try:
                answer = {"number": number, **do(number)}
            except Exception as failure:
                answer = {"error": f"Task {number}: {sentence(failure)}"}
        print(json.dumps(answer), file=answers, flush=True)
