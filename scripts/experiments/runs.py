"""Training runs, each in a process of its own, that can be stopped and resumed."""

import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from vanilla_transformer.errors import DivergenceError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.summary import read_summary

DIVERGED = 3
# Processes are forked from one that has imported everything and computed nothing.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["vanilla_transformer.training.loop"])


class ExperimentError(ValueError):
    """An experiment that cannot be made or resumed, explained in one sentence."""


@dataclass(frozen=True)
class Run:
    """A training run: its name, its recipe without an output, and a function for its process to call first."""

    name: str
    recipe: Recipe
    before: Callable[[], object] | None = None


class Experiment:
    """Runs in the folders of one directory; finished runs are not repeated, and stopped ones are resumed."""

    def __init__(self, directory: Path, jobs: int) -> None:
        self.directory, self.jobs = directory, jobs

    def model(self, run: Run) -> Path:
        """Returns the directory of the run's model."""
        return self.directory / run.name / "model"

    def has_diverged(self, run: Run) -> bool:
        """Returns True if the run ended because its loss was NaN or infinite."""
        return self._mark(run).exists()

    def is_over(self, run: Run) -> bool:
        """Returns True if the run has ended."""
        return self.has_diverged(run) or (self.model(run) / "summary.json").exists()

    def summary(self, run: Run) -> dict[str, Any]:
        """Reads the summary of a run that ended well."""
        return read_summary(self.model(run) / "summary.json") or {}

    def records(self, run: Run) -> list[dict[str, Any]]:
        """Reads the lines of the run's metrics.jsonl."""
        file = self.model(run) / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []

    def begin_anew(self, run: Run) -> None:
        """Deletes the files of an unfinished run."""
        shutil.rmtree(self.model(run), ignore_errors=True)

    def drop_weights(self, run: Run) -> None:
        """Deletes the weights of a finished run, and keeps its measurements."""
        shutil.rmtree(self.model(run) / "checkpoints", ignore_errors=True)
        for file in self.model(run).glob("*.safetensors"):
            file.unlink()

    def train(self, runs: Sequence[Run], done: Callable[[Run], object] = lambda run: None) -> None:
        """Trains all unfinished runs, at most `jobs` at a time, and calls `done` after each.

        Raises:
            ExperimentError: A run failed, or the directory holds another run with the same name.
        """
        for run in runs:
            self._keep_recipe(run)
        waiting = [run for run in runs if not self.is_over(run)]
        running: list[tuple[Run, ForkServerProcess, float]] = []
        try:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    running.append((waiting[0], self._start(waiting.pop(0)), time.monotonic()))
                multiprocessing.connection.wait([process.sentinel for _, process, _ in running])
                ended = [entry for entry in running if not entry[1].is_alive()]
                running = [entry for entry in running if entry not in ended]
                for run, process, start in ended:
                    self._end(run, process)
                    minutes, left = (time.monotonic() - start) / 60, len(waiting) + len(running)
                    say(f"{run.name}: {minutes:.1f} min; {left} to go" if left else f"{run.name}: {minutes:.1f} min")
                    done(run)
        finally:
            # They save their state, and resume from it the next time.
            for _, process, _ in running:
                process.terminate()
            for _, process, _ in running:
                process.join()

    def _mark(self, run: Run) -> Path:
        return self.directory / run.name / "diverged"

    def _log(self, run: Run) -> Path:
        return self.directory / run.name / "output.log"

    def _keep_recipe(self, run: Run) -> None:
        file = self.directory / run.name / "recipe.yaml"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write(file, run.recipe.to_yaml())
            return
        kept = load_recipe(file)
        for name, value in run.recipe.options.items():
            if value != kept[name]:
                raise ExperimentError(
                    f"{self.directory} holds another experiment ({run.name} has {name} {kept[name]} there, "
                    f"{value} here): name another directory as --output, or give the same options to go on."
                )

    def _start(self, run: Run) -> ForkServerProcess:
        recipe = run.recipe.with_options(output=str(self.model(run)))
        process = PROCESSES.Process(target=_train, args=(recipe, self._log(run), self.jobs, run.before))
        process.start()
        return process

    def _end(self, run: Run, process: ForkServerProcess) -> None:
        if process.exitcode == DIVERGED:
            self._mark(run).touch()
        elif process.exitcode:
            log = self._log(run)
            lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
            last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {process.exitcode}")
            raise ExperimentError(f"{run.name} failed: {last.rstrip('.')} (all that it said is in {log}).")


def _train(recipe: Recipe, log: Path, jobs: int, before: Callable[[], object] | None) -> None:
    """Trains one run in its process, with its share of the threads, and writes all output to a file."""
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    import torch

    from vanilla_transformer.training.loop import train

    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    if before is not None:
        before()
    try:
        train(recipe)
    except DivergenceError as error:
        print(error)
        sys.exit(DIVERGED)
    except (OSError, ValueError, RuntimeError) as error:
        print(" ".join(str(error).split()))
        sys.exit(1)


def say(sentence: str) -> None:
    """Prints progress to standard error."""
    print(sentence, file=sys.stderr, flush=True)


def cells(values: Sequence[object]) -> str:
    """Formats a line of a Markdown table."""
    return f"| {' | '.join(map(str, values))} |"


def write(file: Path, text: str) -> None:
    """Replaces the file with the whole text, or leaves it as it was."""
    partial = file.with_name(f".{file.name}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)


@contextmanager
def command(name: str) -> Iterator[None]:
    """Turns errors within the block into one sentence, and signals into an orderly end, as a command line does."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, ValueError) as error:
        print(f"{name}: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
    finally:
        signal.signal(signal.SIGTERM, before)
