"""Shared parts of commands that work in numbered tasks: their options, and ways to run the tasks."""

import base64
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from tyro.conf import arg

from vanilla_transformer.cli.arguments import OptionalInt, UsageError, at_least_one
from vanilla_transformer.progress import progress_bar

if TYPE_CHECKING:
    from vanilla_transformer.cli.translate import Translate


class TaskCommand(Protocol):
    """A command that can be sent to the machines that run its tasks."""

    def task_runner(self) -> Callable[[int], dict[str, Any]]:
        """Loads what all tasks need, and returns a function that runs a task by its number and reports the result."""


@dataclass(frozen=True)
class TaskOptions:
    """Numbered tasks, each of which reads its own part and runs independently."""

    tasks: OptionalInt = None
    """Split the input into this many parts of about equal size; each is a task that writes its own files."""
    task_number: Annotated[int | None, arg(name="task", metavar="INT", help_behavior_hint="")] = None
    """Run only this one of --tasks, counted from 0, as in a Slurm array or an indexed Kubernetes job."""
    workers: OptionalInt = None
    """Tasks to run at a time (default: one per accelerator if the tasks use them, or else one)."""
    engine: Annotated[
        Literal["local", "slurm", "ray"] | None, arg(metavar="{local,slurm,ray}", help_behavior_hint="")
    ] = None
    """Run the tasks with an executor of datatrove: on this machine, as a Slurm array, or on a Ray cluster
    (default: processes on this machine, each restarted if it dies)."""
    engine_options: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...", help_behavior_hint="")] = ()
    """Settings of the executor, such as `time=24:00:00 partition=gpu gpus_per_task=1`."""

    def check_use(self, command: "Translate") -> None:
        """Refuses several inputs, and options of numbered tasks, in a translation without them."""
        if self.tasks is not None:
            return
        if len(command.files) > 1:
            if not Path(command.files[0]).is_file():
                raise UsageError(
                    f"{command.files[0]} is neither a file nor a model directory, which would have a "
                    "config.json: correct its name."
                )
            raise UsageError("Several inputs can only be translated as numbered tasks: give --output DIR --tasks N.")
        for name, value in {**vars(self), "source_column": command.source_column}.items():
            if value not in (None, ()):
                option = name.removesuffix("_number").replace("_", "-")
                raise UsageError(f"--{option} is for numbered tasks: give --output DIR --tasks N.")

    def check(self, output: str) -> None:
        """Refuses options that cannot be combined, and an output that is no directory."""
        at_least_one(tasks=self.tasks, workers=self.workers)
        assert self.tasks is not None
        if self.task_number is not None and not 0 <= self.task_number < self.tasks:
            raise UsageError(f"--task counts from 0 to {self.tasks - 1}, for --tasks {self.tasks}.")
        if self.engine_options and self.engine is None:
            raise UsageError("--engine-options needs --engine.")
        if Path(output).is_file():
            raise UsageError(f"{output} is a file, but tasks need a directory.")

    def translate(self, command: "Translate") -> None:
        """Runs the tasks of a translation."""
        from vanilla_transformer.extras.many_machines.translating import run_tasks

        run_tasks(command)

    def runner_of_translation(self, command: "Translate") -> Callable[[int], dict[str, Any]]:
        """Loads the model of a translation, and returns a function that runs a task by its number."""
        from vanilla_transformer.extras.many_machines.translating import task_runner

        return task_runner(command)

    def run_on_workers(self, commands: Sequence[TaskCommand], show_progress: bool) -> None:
        """Runs the tasks with processes on this machine, one for each command."""
        from vanilla_transformer.extras.many_machines.workers import Workers

        assert self.tasks is not None
        words = [sys.executable, "-m", "vanilla_transformer.extras.many_machines.task_worker", str(os.getpid())]
        with progress_bar(show_progress, "tasks", total=self.tasks) as bar:
            Workers(words, list(map(as_line, commands)), lambda answer: bar.update(1)).run(range(self.tasks))

    def run_on_engine(self, command: TaskCommand, output: str, unfinished: Callable[[], Sequence[int]]) -> None:
        """Has the engine run the unfinished tasks, or put them into its queue."""
        from vanilla_transformer.extras.many_machines.engines import run_on_engine
        from vanilla_transformer.extras.many_machines.folder import TaskError

        assert self.tasks is not None and self.engine is not None
        numbers = unfinished()
        if numbers:
            do = TaskByItself(command)
            run_on_engine(self.engine, do, numbers, output, self.workers or 1, self.engine_options)
        if self.engine == "slurm":
            print(f"{len(numbers):,} of {self.tasks:,} tasks are in the queue.", file=sys.stderr)
        elif missing := unfinished():
            raise TaskError(f"{len(missing):,} tasks in {output} are not done: run the same command again.")


@dataclass(frozen=True)
class TaskByItself:
    """Runs tasks of a command on any machine, loading what the command needs first."""

    command: TaskCommand

    def __call__(self, number: int) -> None:
        """Loads what the task needs, and runs it."""
        self.command.task_runner()(number)


def as_line(command: TaskCommand) -> str:
    """Encodes a command as a line for our workers."""
    return base64.b64encode(pickle.dumps(command)).decode()


def from_line(line: str) -> TaskCommand:
    """Decodes a command from a line of `as_line`."""
    return pickle.loads(base64.b64decode(line))
