"""Numbered tasks on datatrove's executors: on this machine, under Slurm or on a Ray cluster."""

import inspect
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vanilla_transformer.extras.many_machines.folder import TaskError

# Options that tell datatrove the environment on a Slurm node; one of them is enough.
_ENVIRONMENTS = {"env_command", "condaenv", "venv_path"}
# Options that we set ourselves.
_OURS = ("self", "pipeline", "tasks", "logging_dir", "skip_completed", "depends", "workers")


@dataclass(frozen=True)
class NumberedTasks:
    """A step of datatrove's pipelines: runs the unfinished tasks of a job by their place among them."""

    do: Callable[[int], object]
    numbers: tuple[int, ...]

    def __call__(self, data: Any, rank: int, world_size: int) -> None:
        """Runs the task at that rank."""
        self.do(self.numbers[rank])


def run_on_engine(
    engine: str, do: Callable[[int], object], numbers: Sequence[int], folder: str, workers: int, options: Sequence[str]
) -> None:
    """Runs tasks with an executor of datatrove, or under Slurm puts them into the queue.

    Args:
        do: Runs a task; it is pickled.
        folder: The folder of the job, where the executor keeps its state.
        workers: Number of tasks at a time.
        options: `name=value` for the executor.

    Raises:
        TaskError: datatrove is missing, or there is no such option.
    """
    try:
        executor: Any = _executor(engine)
    except ImportError as error:
        raise TaskError(
            f"--engine {engine} needs {'datatrove and Ray' if engine == 'ray' else 'datatrove'}, of which "
            f"{error.name or 'one'} is not installed: run `pip install 'vanilla-transformer[cluster]'"
            f"{' ray' if engine == 'ray' else ''}`."
        ) from error
    # A new state folder each time: datatrove's marks know neither model nor input, and we know which tasks are done.
    state = f"{folder.rstrip('/')}/engine/{time.strftime('%Y-%m-%d-%H-%M-%S')}"
    settings = _settings(executor, engine, options)
    pipeline = [NumberedTasks(do, tuple(numbers))]
    executor(pipeline=pipeline, tasks=len(numbers), workers=workers, logging_dir=state, **settings).run()


def _executor(engine: str) -> type:
    if engine == "local":
        from datatrove.executor.local import LocalPipelineExecutor

        return LocalPipelineExecutor
    if engine == "slurm":
        from datatrove.executor.slurm import SlurmPipelineExecutor

        return SlurmPipelineExecutor
    import ray
    from datatrove.executor.ray import RayPipelineExecutor

    ray.init(ignore_reinit_error=True)  # The cluster of RAY_ADDRESS, or a local one.
    return RayPipelineExecutor


def _settings(executor: type, engine: str, options: Sequence[str]) -> dict[str, Any]:
    parameters = {
        name: parameter for name, parameter in inspect.signature(executor).parameters.items() if name not in _OURS
    }
    settings: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or name not in parameters:
            raise TaskError(
                f"--engine-options takes name=value, and --engine {engine} has no {name!r}: it has "
                f"{', '.join(parameters)}."
            )
        settings[name] = int(value) if value.lstrip("-").isdigit() else value
    needed = [name for name, one in parameters.items() if one.default is inspect.Parameter.empty]
    missing = [f"{name}=..." for name in needed if name not in settings]
    if missing:
        raise TaskError(f"--engine {engine} needs {', '.join(missing)} as --engine-options")
    if engine == "slurm" and settings.keys().isdisjoint(_ENVIRONMENTS):
        # The program that datatrove starts on a node lies beside this Python, even if that is not in PATH.
        settings["env_command"] = f'export PATH={shlex.quote(os.path.dirname(sys.executable))}:"$PATH"'
    return settings
