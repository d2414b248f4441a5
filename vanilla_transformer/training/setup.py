"""The start of a run: text turned into tokens, and processes that form a group."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from accelerate import Accelerator

from vanilla_transformer.distributed.peers import Peers, have_one_command, is_main_process, meet
from vanilla_transformer.distributed.processes import (
    check_launch,
    check_same_data,
    check_same_output,
    check_same_recipe,
    start_accelerator,
)
from vanilla_transformer.distributed.torchrun import explain_lost_processes
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.recipe.defaults import CorpusFacts, check_sizes, device_facts, resolve, with_cells
from vanilla_transformer.recipe.schema import Recipe, ResolvedRecipe
from vanilla_transformer.reporting.run_logger import RunLogger
from vanilla_transformer.tasks import task_for
from vanilla_transformer.training.checkpoints import Checkpoint, latest_checkpoint
from vanilla_transformer.training.inputs import Inputs, gather_inputs
from vanilla_transformer.training.run_directory import RECIPE, AlreadyFinished, RunDirectory, output_path
from vanilla_transformer.training.saved_start import recipe_of_start
from vanilla_transformer.training.trackers import make_trackers


@dataclass(frozen=True)
class RunContext:
    """A run that holds its output directory and has turned its text into tokens.

    `checkpoint` is the one from which it continues.
    """

    recipe: ResolvedRecipe
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
        with explain_lost_processes(), meet(recipe.run.process_timeout) as peers:
            if not have_one_command():
                check_same_recipe(peers, recipe)
            to_follow = peers.broadcast_from_main(lambda: _opened(run, recipe))
            if isinstance(to_follow, Recipe):
                with _errors_in_log(logger):
                    inputs = _prepare(to_follow, run, peers, logger)
                    accelerator = start_accelerator(trackers, run.path, peers)
                    resolved = peers.broadcast_from_main(partial(_resolve, inputs, accelerator, logger))
                    find = partial(latest_checkpoint, run.checkpoints, logger.info)
                    checkpoint = peers.broadcast_from_main(find)
        if isinstance(to_follow, AlreadyFinished):
            raise to_follow
        with _errors_in_log(logger), explain_lost_processes():
            context = RunContext(resolved, run, inputs, checkpoint, accelerator, logger)
            logger.info(_plan(context))
            yield context
    finally:
        logger.close_bar()
        run.leave()
        if accelerator is not None:
            accelerator.end_training()


def _prepare(recipe: Recipe, run: RunDirectory, peers: Peers, logger: RunLogger) -> Inputs:
    """Turns the text into tokens, the main process first, however long that takes."""
    if not have_one_command():
        check_same_output(peers, run.path / RECIPE)
    if peers.is_main and not run.is_locked:
        logger.info(f"The disk of {run.path} cannot lock files: make sure that no other process trains there.")
    inputs = peers.main_process_first(lambda: gather_inputs(recipe, run, logger.info))
    corpora = {"train": inputs.train, "dev": inputs.dev}
    check_same_data(peers, {name: corpus.tokens for name, corpus in corpora.items() if corpus is not None})
    return inputs


@contextmanager
def _errors_in_log(logger: RunLogger) -> Iterator[None]:
    """Writes an error raised in its body to the log of the run that it ends."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        with suppress(OSError):
            logger.debug(f"Ended by an error: {error}")
        raise


def _opened(run: RunDirectory, recipe: Recipe) -> Recipe | AlreadyFinished:
    """Shares the main process's findings in the directory with all; having nothing to do is not a failure."""
    try:
        return run.open(recipe)
    except AlreadyFinished as finished:
        return finished


def _resolve(inputs: Inputs, accelerator: Accelerator, logger: RunLogger) -> ResolvedRecipe:
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
