"""Training runs, each in a process of its own, that can be stopped and resumed, and what all experiments share."""

import json
import math
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Annotated, Any, Self

import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg

from scripts.turns import report
from vanilla_transformer.errors import DivergenceError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.run_directory import output_path

DIVERGED = 3
LOWER_IS_BETTER = {"perplexity", "ter", "wer", "per"}
# Processes are forked from one that has imported everything and computed nothing.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["vanilla_transformer.training.loop"])


class ExperimentError(ValueError):
    """An experiment that cannot be made or resumed, explained in one sentence."""


@dataclass(frozen=True)
class Options:
    """What every experiment can be asked."""

    name: Annotated[str | None, Positional, arg(metavar="[RECIPE]", help_behavior_hint="")] = None
    """A recipe of the package or a YAML file, which comes before all options."""
    runs: int = 3
    """Runs of each row, with seeds from --seed on."""
    jobs: int = 1
    """Runs at a time, which share the cores or OMP_NUM_THREADS."""
    recipe: Annotated[Recipe, arg(name="")] = Recipe()

    @classmethod
    def of(cls, words: Sequence[str], program: str, **settings: Any) -> Self:
        """Reads the command line: a recipe with these settings, and the options that override it.

        Raises:
            ExperimentError: It lacks an output or a dev, or has too few runs.
        """
        default = cls(recipe=Recipe.of(**settings))
        if words and not words[0].startswith("-"):
            default = cls(words[0], recipe=load_recipe(words[0]).with_options(examples=(), **settings))
        options = tyro.cli(cls, prog=program, args=words, default=default, config=(OmitArgPrefixes,), description=None)
        if options.recipe.run.output is None:
            raise ExperimentError("There is no place for the runs and the table: name a directory as --output.")
        if not options.recipe.data.dev:
            raise ExperimentError("Runs are measured on dev: give the pairs of text as --dev.")
        if options.runs < 1 or options.jobs < 1:
            raise ExperimentError("--runs and --jobs must be at least 1.")
        return options


@dataclass(frozen=True)
class Spread:
    """Mean over the seeds, and standard deviation if there are several."""

    mean: float
    deviation: float | None

    @classmethod
    def from_values(cls, values: Sequence[float]) -> "Spread | None":
        """Returns mean and deviation, or None without values."""
        if not values:
            return None
        return cls(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.deviation is None else f" ± {self.deviation:.3f}")


@dataclass(frozen=True)
class Run:
    """A training run: its name, its recipe without an output, and a function for its process to call first."""

    name: str
    recipe: Recipe
    before: Callable[[], object] | None = None


class Experiment:
    """Runs in the folders of one directory; finished runs are not repeated, stopped ones resumed or begun anew."""

    def __init__(self, options: Options, resumes: bool = True) -> None:
        self.directory, self.jobs, self.resumes = output_path(options.recipe).resolve(), options.jobs, resumes
        first = options.recipe.optimization.seed
        self.seeds = range(first, first + options.runs)

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
        return json.loads((self.model(run) / "summary.json").read_text(encoding="utf-8"))

    def records(self, run: Run) -> list[dict[str, Any]]:
        """Reads the lines of the run's metrics.jsonl."""
        file = self.model(run) / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []

    def figures(self, run: Run) -> dict[str, Any]:
        """Returns the seed of a run that is over, whether it diverged, and otherwise perplexity and scores on dev."""
        seed = {"seed": run.recipe.optimization.seed, "diverged": self.has_diverged(run)}
        if seed["diverged"]:
            return seed
        summary = self.summary(run)
        scores = {score["name"]: score["value"] for score in summary["scores"].get("dev", [])}
        kept = {name: summary[name] for name in ("parameters", "seconds")}
        return {**seed, **kept, "perplexity": math.exp(summary["last_dev_loss"]), **scores}

    def compare(
        self,
        first: Run,
        rows_of: Callable[[Recipe], dict[str, Run]],
        show: Callable[[dict[str, list[Run]], Recipe], str],
    ) -> None:
        """Trains each row of a table with each seed, and shows the table after each run and at the end.

        Args:
            first: A row. Its first run settles the open choices of the recipe, and all others have the same choices
                and vocabulary.
            rows_of: Returns all rows by name, from the recipe of the first run.
            show: Writes the table of the runs that are over, and returns it.
        """
        first = replace(first, name=f"{first.name}-{self.seeds[0]}", recipe=first.recipe.with_options(output=None))
        self.train([first])
        if self.has_diverged(first):
            raise ExperimentError(
                "The first run diverged: give a smaller --learning-rate-scale or more --warmup-steps."
            )
        tokenizer = first.recipe.tokenizer.tokenizer or str(self.model(first))
        chosen = load_recipe(self.model(first) / "recipe.yaml").with_options(tokenizer=tokenizer, output=None)

        def with_seed(row: str, run: Run, seed: int) -> Run:
            seeded = replace(run, name=f"{row}-{seed}", recipe=run.recipe.with_options(seed=seed))
            return first if seeded.name == first.name else seeded

        runs = {row: [with_seed(row, run, seed) for seed in self.seeds] for row, run in rows_of(chosen).items()}

        def shown() -> str:
            over = {row: [run for run in of if self.is_over(run)] for row, of in runs.items()}
            return show({row: of for row, of in over.items() if of}, chosen)

        # Seed by seed, so that a table appears early and its spread later.
        self.train([run for same_seed in zip(*runs.values(), strict=True) for run in same_seed], shown)
        print(shown())

    def train(self, runs: Sequence[Run], done: Callable[[], object] = lambda: None) -> None:
        """Trains all unfinished runs, at most `jobs` at a time, and calls `done` after each.

        Raises:
            ExperimentError: A run failed, or the directory holds another run with the same name.
        """
        for run in runs:
            self._keep_recipe(run)
        waiting = [run for run in runs if not self.is_over(run)]
        for run in waiting if not self.resumes else ():
            shutil.rmtree(self.model(run), ignore_errors=True)
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
                    report(f"{run.name}: {minutes:.1f} min{f'; {left} to go' if left else ''}")
                    done()
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

    from vanilla_transformer.training.run import train

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
