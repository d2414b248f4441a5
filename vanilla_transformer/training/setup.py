"""The start of a run: text turned into tokens, and processes that form a group."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from accelerate import Accelerator
from accelerate.tracking import get_available_trackers

from vanilla_transformer.data.preparation import MixedCorpus
from vanilla_transformer.errors import RunError, SettingError
from vanilla_transformer.evaluation import Processes, check_names
from vanilla_transformer.machine import is_slowed_by_others
from vanilla_transformer.recipe.defaults import CorpusFacts, check_sizes, counted, device_facts, resolve
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import task_for
from vanilla_transformer.training.checkpoints import Checkpoint, has_checkpoints, latest_checkpoint
from vanilla_transformer.training.inputs import Inputs, gather_inputs, open_inputs
from vanilla_transformer.training.model import recipe_of_start
from vanilla_transformer.training.processes import (
    check_launch,
    form_groups,
    from_main_process,
    is_main_process,
    start_accelerator,
)
from vanilla_transformer.training.run_directory import AlreadyFinished, RunDirectory, RunLogger, output_path
from vanilla_transformer.training.time_budget import SCHEDULE, TimeBudget


@dataclass(frozen=True)
class RunContext:
    """A run that holds its output directory and has turned its text into tokens."""

    recipe: Recipe
    run: RunDirectory
    inputs: Inputs
    checkpoint: Checkpoint | None
    accelerator: Accelerator
    processes: Processes
    logger: RunLogger
    budget: TimeBudget

    def plan_for_time(self, seconds_per_step: float) -> Recipe:
        """Returns the recipe with the schedule of the steps that fit into its minutes."""
        given, steps = self.inputs.recipe, self.budget.steps(seconds_per_step)
        self.logger.info(
            f"Speed: {seconds_per_step:.3g} s a step, which leaves time for about {counted(steps, 'step')}."
        )
        open_again = self.recipe.with_options(**{name: given[name] for name in SCHEDULE})
        return _resolve(open_again, self.inputs, self.accelerator, self.logger, steps)


@contextmanager
def start_run(recipe: Recipe, begun: float | None = None) -> Iterator[RunContext]:
    """Opens a run's directory, prepares its tokens and forms the group of its processes, until the block ends."""
    called = time.perf_counter()
    task = task_for(recipe)
    if recipe.evaluation.metrics:
        check_names(recipe.evaluation.metrics, task.metrics)
    run = RunDirectory(output_path(recipe))
    if not has_checkpoints(run.checkpoints):  # A resumed run has its sizes, and may no longer have its starting model.
        recipe = recipe_of_start(recipe, task)
        check_sizes(recipe, task)
    if recipe.evaluation.patience is not None and not recipe.data.dev:
        raise SettingError("Patience needs a loss on dev: give held-out data as --dev.")
    _check_trackers(recipe.run.trackers)
    check_launch()
    logger = RunLogger(run.path, enabled=is_main_process())
    with ExitStack() as resources:
        resources.callback(run.unlock)
        processes = form_groups(recipe.run)
        gathered = _open_and_prepare(recipe, run, logger) if is_main_process() else None
        completed = processes.gather(gathered.recipe if isinstance(gathered, Inputs) else gathered)[0]
        if isinstance(completed, AlreadyFinished):
            raise completed
        inputs = gathered if isinstance(gathered, Inputs) else open_inputs(completed, run)
        accelerator = resources.enter_context(start_accelerator(recipe.run))
        if accelerator.device.type == "cpu" and is_slowed_by_others():
            logger.info(
                "Warning: other programs use the cores, and training is slower than it could be, because torch was "
                "imported first. Import vanilla_transformer before torch, or set OMP_WAIT_POLICY=passive."
            )
        texts = [corpus.tokens for corpus in (inputs.train, inputs.dev) if corpus is not None]
        if texts != from_main_process(lambda: texts):
            raise RunError(
                f"{run.path.absolute()} on {socket.gethostname()} has another text than the main process: all need "
                "one output directory, on a disk that they share."
            )
        resolved = _resolve(inputs.recipe, inputs, accelerator, logger)
        checkpoint = from_main_process(partial(latest_checkpoint, run.checkpoints))
        earlier = 0.0 if checkpoint is None else checkpoint.progress.seconds
        budget = TimeBudget(resolved.optimization.max_minutes, called if begun is None else begun, called, earlier)
        try:
            yield RunContext(resolved, run, inputs, checkpoint, accelerator, processes, logger, budget)
        except Exception as error:
            with suppress(OSError):  # The disk may be full.
                logger.info(f"Ended by an error: {error}", shown=False)
            raise
        processes.gather(None)
        # Not after an error: to end NCCL's group waits for the others.
        with logger.optional("the trackers cannot be closed"):
            accelerator.end_training()


def _check_trackers(names: Sequence[str]) -> None:
    """Raises SettingError if a tracker does not exist or is not installed, which accelerate would pass over."""
    available = sorted(map(str, get_available_trackers()))
    for name in names:
        if name not in available:
            raise SettingError(
                f"There is no tracker {name} here: available are {', '.join(available) or 'none'}, others when "
                "their packages are installed."
            )


def _open_and_prepare(recipe: Recipe, run: RunDirectory, logger: RunLogger) -> Inputs | AlreadyFinished:
    """Turns the text into tokens, or returns why there is nothing to do, which the main process sends to all."""
    try:
        recipe = run.open(recipe)
    except AlreadyFinished as finished:
        return finished
    return gather_inputs(recipe, run, logger.info)


def _resolve(
    recipe: Recipe, inputs: Inputs, accelerator: Accelerator, logger: RunLogger, steps_in_time: int | None = None
) -> Recipe:
    """Makes the choices still open, and reports them."""
    train = inputs.train
    parts = zip(train.parts, train.shares, strict=True) if isinstance(train, MixedCorpus) else ()
    corpus = CorpusFacts(
        pairs=len(train),
        tokens=train.token_counts,
        vocab_size=inputs.recipe.tokenizer.vocab_size or len(inputs.tokenizer),
        dev_tokens=(0,) if inputs.dev is None else inputs.dev.token_counts,
        parts=tuple((len(part), rows) for part, rows in parts),
    )
    device = device_facts(accelerator.device, accelerator.num_processes)
    resolved, sentences = from_main_process(partial(resolve, recipe, task_for(recipe), corpus, device, steps_in_time))
    for sentence in sentences:
        logger.info(sentence)
    return resolved
