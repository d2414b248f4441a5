"""The start of a run: text turned into tokens, and processes that form a group."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from accelerate import Accelerator

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.recipe.defaults import CorpusFacts, check_sizes, device_facts, resolve, with_cells
from vanilla_transformer.recipe.schema import Recipe, in_words
from vanilla_transformer.tasks import task_for
from vanilla_transformer.training.checkpoints import Checkpoint, latest_checkpoint
from vanilla_transformer.training.inputs import Inputs, gather_inputs
from vanilla_transformer.training.processes import (
    check_launch,
    check_same,
    find_store,
    from_main_process,
    is_main_process,
    main_process_first,
    start_accelerator,
)
from vanilla_transformer.training.run_directory import RECIPE, AlreadyFinished, RunDirectory, output_path
from vanilla_transformer.training.run_logger import RunLogger
from vanilla_transformer.training.saved_start import recipe_of_start
from vanilla_transformer.training.trackers import make_trackers


@dataclass(frozen=True)
class RunContext:
    """A run that holds its output directory and has turned its text into tokens.

    `checkpoint` is the one from which it continues.
    """

    recipe: Recipe
    run: RunDirectory
    inputs: Inputs
    checkpoint: Checkpoint | None
    accelerator: Accelerator
    logger: RunLogger


@contextmanager
def start_run(recipe: Recipe) -> Iterator[RunContext]:
    """Opens a run's directory, prepares its tokens and forms the group of its processes, until the block ends.

    Raises:
        ValueError, OSError: The recipe, output or processes do not allow it; the message says what.
        AlreadyFinished: Raised on all processes: there is nothing to do.
    """
    task = task_for(recipe)
    task.check(recipe)
    for option in recipe.used("classification"):
        if option not in getattr(task, "label_options", ()):
            raise RecipeError(f"{option} is not for {task.name}: leave it out.")
    recipe = with_cells(recipe)
    recipe = recipe_of_start(recipe, task)
    check_sizes(recipe, task)
    if recipe.evaluation.patience is not None and not recipe.data.dev:
        raise RecipeError("Patience needs a loss on dev: give held-out data as --dev.")
    run = RunDirectory(output_path(recipe))
    trackers = make_trackers(recipe.run.trackers, run.path)
    check_launch()
    logger = RunLogger(run.metrics, run.log, enabled=is_main_process())
    accelerator = None
    try:
        store = find_store()
        inputs = main_process_first(store, partial(_open_and_prepare, recipe, run, logger))
        if isinstance(inputs, AlreadyFinished):
            raise inputs
        with _errors_in_log(logger):
            accelerator = start_accelerator(store, recipe.run.process_timeout, trackers, run.path)
            check_same(_facts(inputs, run))
            resolved = from_main_process(partial(_resolve, inputs, accelerator, logger))
            checkpoint = from_main_process(partial(latest_checkpoint, run.checkpoints, logger.info))
            context = RunContext(resolved, run, inputs, checkpoint, accelerator, logger)
            logger.info(_plan(context))
            yield context
    finally:
        logger.close_bar()
        run.leave()
        if accelerator is not None:
            accelerator.end_training()


def _open_and_prepare(recipe: Recipe, run: RunDirectory, logger: RunLogger) -> Inputs | AlreadyFinished:
    """Turns the text into tokens; all processes hear from the main one that there is nothing to do."""
    try:
        recipe = run.open(recipe) if is_main_process() else run.follow(recipe)
    except AlreadyFinished as finished:
        return finished
    if is_main_process() and not run.is_locked:
        logger.info(f"The disk of {run.path} cannot lock files: make sure that no other process trains there.")
    with _errors_in_log(logger):
        return gather_inputs(recipe, run, logger.info)


def _facts(inputs: Inputs, run: RunDirectory) -> dict[str, Any]:
    """Returns what all processes of a run must have in common."""
    recipe = {name: in_words(value) for name, value in inputs.recipe.options.items()}
    corpora = {"train": inputs.train, "dev": inputs.dev}
    texts = {f"tokens of {name}": corpus.tokens for name, corpus in corpora.items() if corpus is not None}
    return {**recipe, **texts, "recipe in the output directory": (run.path / RECIPE).is_file()}


@contextmanager
def _errors_in_log(logger: RunLogger) -> Iterator[None]:
    """Writes an error raised in its body to the log of the run that it ends."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        with suppress(OSError):
            logger.debug(f"Ended by an error: {error}")
        raise


def _resolve(inputs: Inputs, accelerator: Accelerator, logger: RunLogger) -> Recipe:
    """Makes the choices still open, and reports them."""
    corpus = CorpusFacts(
        pairs=len(inputs.train),
        tokens=inputs.train.token_counts,
        vocab_size=len(inputs.tokenizer),
        dev_tokens=(0,) if inputs.dev is None else inputs.dev.token_counts,
    )
    device = device_facts(accelerator.device, accelerator.num_processes)
    resolved, sentences = resolve(inputs.recipe, task_for(inputs.recipe), corpus, device)
    for sentence in sentences:
        logger.info(sentence)
    return resolved


def _plan(context: RunContext) -> str:
    """Describes the steps that follow, whose sizes `resolve` has described."""
    unit, processes = task_for(context.recipe).form.unit, context.accelerator.num_processes
    done = 0 if context.checkpoint is None else context.checkpoint.step
    shared = f", shared by {processes} processes" if processes > 1 else ""
    steps = f"from step {done:,} to {context.recipe.optimization.max_steps:,}"
    return f"Plan: {steps} over {len(context.inputs.train):,} {unit}{shared}, in {context.run.path}."
