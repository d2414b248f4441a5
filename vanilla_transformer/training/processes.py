"""Several processes at one run: what the main one does before the others, and failing together."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, ProjectConfiguration, broadcast_object_list

from vanilla_transformer.training.directory import RunDirectory
from vanilla_transformer.training.recipe import Recipe
from vanilla_transformer.training.trackers import make_trackers

Result = TypeVar("Result")
# The others wait while the main process reads and prepares the corpus.
LONGEST_WAIT = timedelta(hours=12)


def start_accelerator(recipe: Recipe, run: RunDirectory) -> Accelerator:
    """Joins the other processes, if there are any, and finds this one's device and the trackers asked for."""
    trackers = make_trackers(recipe.trackers, run)
    return Accelerator(
        # Left to itself accelerate takes several processes without accelerators for so many runs of one process.
        cpu=not torch.accelerator.is_available(),
        log_with=trackers or None,
        project_config=ProjectConfiguration(project_dir=str(run.path), logging_dir=str(run.trackers)),
        step_scheduler_with_optimizer=False,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=LONGEST_WAIT)],
    )


def main_first(accelerator: Accelerator, work: Callable[[], Result]) -> Result:
    """The result of `work` on every process; the main one does it first, so that the others find what it wrote.

    Where the main process fails, it alone says why.
    """
    result = _on_main(accelerator, work)
    return result[0] if result else work()


def main_decides(accelerator: Accelerator, work: Callable[[], Result]) -> Result:
    """The result of `work` on the main process, sent to all others."""
    result: list[Any] = _on_main(accelerator, work) or [None]
    return broadcast_object_list(result)[0]


def _on_main(accelerator: Accelerator, work: Callable[[], Result]) -> list[Result]:
    result, failure = [], None
    if accelerator.is_main_process:
        try:
            result.append(work())
        except BaseException as error:
            failure = error
    failed = broadcast_object_list([failure is not None])[0]
    if failure is not None:
        raise failure
    if failed:
        raise SystemExit(1)
    return result
