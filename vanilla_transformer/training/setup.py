"""The beginning of a run, which a rehearsal shares: processes that agree, and text that has become tokens."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from accelerate import Accelerator

from vanilla_transformer.data.preparation import PreparedCorpus
from vanilla_transformer.distributed.processes import (
    broadcast_from_main,
    check_same_data,
    check_same_output,
    check_same_recipe,
    main_process_first,
    start_accelerator,
)
from vanilla_transformer.distributed.watch import standing_together
from vanilla_transformer.recipe.defaults import CorpusFacts, check_sizes, complete, device_facts
from vanilla_transformer.recipe.schema import Recipe, RecipeError
from vanilla_transformer.reporting.run_logger import RunLogger
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training.inputs import Inputs, gather_inputs
from vanilla_transformer.training.run_directory import RECIPE, AlreadyFinished, RunDirectory


@dataclass(frozen=True)
class Begun:
    """A run whose output directory is this process's to use, and the recipe with the choices made there before."""

    recipe: Recipe
    run: RunDirectory
    accelerator: Accelerator
    logger: RunLogger


@contextmanager
def begun(recipe: Recipe) -> Iterator[Begun]:
    """Joins the processes of a run and opens its directory, until the block ends.

    Raises:
        RecipeError, ValueError, OSError: The recipe, output or processes do not allow it; the message says what.
        AlreadyFinished: On all processes: there is nothing to do.
    """
    task = get_task(recipe.task)
    task.check(recipe)
    check_sizes(recipe, task)
    if recipe.patience is not None and not recipe.dev:
        raise RecipeError("Patience counts measurements on dev, and there is none: give it as --dev.")
    if recipe.output is None:
        raise RecipeError("There is no place for the model: name a directory as --output.")
    run = RunDirectory(Path(recipe.output))
    accelerator = start_accelerator(recipe, run.path)
    logger = RunLogger(run.metrics, run.log, enabled=accelerator.is_main_process)
    try:
        with standing_together(accelerator, logger.debug):
            check_same_recipe(accelerator, recipe)
            to_follow = broadcast_from_main(accelerator, lambda: _opened(run, recipe))
            if not isinstance(to_follow, AlreadyFinished):
                check_same_output(accelerator, run.path / RECIPE)
                if accelerator.is_main_process and not run.is_locked:
                    logger.info(f"The disk of {run.path} cannot lock files: let no other process train there.")
                yield Begun(to_follow, run, accelerator, logger)
                return
        raise to_follow
    finally:
        run.leave()
        accelerator.end_training()


def _opened(run: RunDirectory, recipe: Recipe) -> Recipe | AlreadyFinished:
    """What the main process finds in the directory; that there is nothing to do is no failure, and all are told."""
    try:
        return run.open(recipe)
    except AlreadyFinished as finished:
        return finished


def prepare(begun: Begun) -> tuple[Recipe, Inputs]:
    """Makes tokens of the text, and settles what the recipe leaves open."""
    accelerator, run, logger = begun.accelerator, begun.run, begun.logger
    inputs = main_process_first(accelerator, lambda: gather_inputs(begun.recipe, run, logger.info))
    corpora = {"train": inputs.train, "dev": inputs.dev}
    check_same_data(accelerator, {name: corpus.tokens for name, corpus in corpora.items() if corpus is not None})
    return broadcast_from_main(accelerator, lambda: _settle(inputs, accelerator, logger)), inputs


def _settle(inputs: Inputs, accelerator: Accelerator, logger: RunLogger) -> Recipe:
    """Chooses what is still open, and says so."""
    corpus = CorpusFacts(
        pairs=len(inputs.train),
        tokens=tuple(int(lengths.sum(dtype=np.int64)) for lengths in inputs.train.lengths.values()),
    )
    device = device_facts(accelerator.device, accelerator.num_processes)
    recipe, sentences = complete(inputs.recipe, get_task(inputs.recipe.task), corpus, device)
    for sentence in sentences:
        logger.info(sentence)
    return recipe


def length_fingerprint(corpus: PreparedCorpus) -> str:
    """Tells corpora apart by the lengths of their rows alone, as checkpoints of earlier versions do."""
    return hashlib.sha256(b"".join(lengths.tobytes() for lengths in corpus.lengths.values())).hexdigest()
