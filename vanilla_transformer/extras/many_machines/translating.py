"""`translate --tasks`: translates the command's input in numbered tasks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vanilla_transformer.cli.arguments import UsageError
from vanilla_transformer.cli.streams import warn
from vanilla_transformer.cli.translate import Translate
from vanilla_transformer.cores import own_threads
from vanilla_transformer.extras.many_machines.folder import TaskFolder
from vanilla_transformer.extras.many_machines.numbered_translation import job_of, run_task, unfinished
from vanilla_transformer.extras.many_machines.parts import cut


def run_tasks(command: Translate) -> None:
    """Runs one task or all, or has an engine run them.

    Raises:
        UsageError: Input, output or options cannot be combined with tasks.
    """
    numbered, output = command.numbered, command.output
    if not command.files or output is None:
        raise UsageError("--tasks needs files to read and an --output directory.")
    if command.resume:
        raise UsageError("--resume is for one file: tasks always continue where they stopped.")
    numbered.check(output)
    cut(command.files, numbered.tasks)  # Refuses an input that cannot be cut, once for all tasks.
    if numbered.task_number is not None:
        command.task_runner()(numbered.task_number)
    elif numbered.engine is not None:
        folder = TaskFolder(output)
        folder.check(job_of(command.files, numbered.tasks, {"model": command.ensemble.fingerprint(command.models)}))
        numbered.run_on_engine(command, output, lambda: unfinished(folder, numbered.tasks))
    else:
        numbered.run_on_workers(_commands_of_workers(command), command.progress)


def task_runner(command: Translate) -> Callable[[int], dict[str, Any]]:
    """Loads the model, and returns a function that runs a task by its number and reports the result."""
    tasks, output = command.numbered.tasks, command.output
    assert output is not None
    translator = command.translator()
    job = job_of(command.files, tasks, command.job_fingerprint(translator))
    folder = TaskFolder(output)

    def run(number: int) -> dict[str, Any]:
        did = run_task(
            folder,
            number,
            job,
            translator,
            inputs=command.files,
            tasks=tasks,
            column=command.source_column,
            render=command.format,
            warn=lambda message: warn(f"task {number}, {message}"),
        )
        return {"did": did}

    return run


def _commands_of_workers(command: Translate) -> list[Translate]:
    """Returns the commands of the workers on this machine: one for each device by default."""
    import torch

    decoding = command.decoding
    devices = [decoding.device]
    if decoding.device in (None, "cuda") and torch.cuda.is_available():
        devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    count = command.numbered.workers or len(devices)
    threads = decoding.threads
    if threads is None and devices == [decoding.device]:
        threads = max(1, own_threads() // count)
    return [
        replace(command, decoding=replace(decoding, device=devices[n % len(devices)], threads=threads))
        for n in range(count)
    ]
