"""The start of a run: text turned into tokens, processes that form a group, and settings that are chosen for both."""

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
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import Task, task_for
from vanilla_transformer.training.checkpoints import Checkpoint, has_checkpoints, latest_checkpoint
from vanilla_transformer.training.choices import Choices, CorpusFacts, check_sizes, device_facts, resolve
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
from vanilla_transformer.training.time_budget import TimeBudget


@dataclass(frozen=True)
class RunContext:
    """A run that has locked its directory and prepared its tokens.

    Attributes:
        inputs: The text and its tokens, with the recipe as given. `choose` completes this recipe.
        checkpoint: The checkpoint to resume from, or None at the beginning.
    """

    task: Task
    directory: RunDirectory
    inputs: Inputs
    checkpoint: Checkpoint | None
    accelerator: Accelerator
    processes: Processes
    logger: RunLogger
    budget: TimeBudget

    def choose(self, recipe: Recipe, steps_in_time: int | None = None) -> Choices:
        """Chooses the settings that a recipe leaves open, and logs the reasons."""
        train, dev, accelerator = self.inputs.train, self.inputs.dev, self.accelerator
        parts = zip(train.parts, train.shares, strict=True) if isinstance(train, MixedCorpus) else ()
        corpus = CorpusFacts(
            pairs=len(train),
            tokens=train.token_counts,
            vocab_size=recipe.tokenizer.vocab_size or len(self.inputs.tokenizer),
            dev_tokens=(0,) if dev is None else dev.token_counts,
            parts=tuple((len(part), rows) for part, rows in parts),
        )
        device = device_facts(accelerator.device, accelerator.num_processes)
        choices = from_main_process(partial(resolve, recipe, self.task, corpus, device, steps_in_time))
        for reason in choices.reasons:
            self.logger.info(reason)
        return choices


@contextmanager
def start_run(recipe: Recipe, begun: float | None = None) -> Iterator[RunContext]:
    """Locks a run's directory, prepares its tokens and forms the group of its processes, until the block ends."""
    called = time.perf_counter()
    task = task_for(recipe)
    if recipe.evaluation.metrics:
        check_names(recipe.evaluation.metrics, task.metrics)
    directory = RunDirectory(output_path(recipe))
    if not has_checkpoints(directory.checkpoints):  # A resumed run has its sizes, and its starting model may be gone.
        recipe = recipe_of_start(recipe, task)
        check_sizes(recipe, task)
    if recipe.evaluation.patience is not None and not recipe.data.dev:
        raise SettingError("Patience needs a loss on dev: give held-out data as --dev.")
    _check_trackers(recipe.run.trackers)
    check_launch()
    logger = RunLogger(directory.path, enabled=is_main_process())
    with ExitStack() as resources:
        resources.callback(directory.unlock)
        processes = form_groups(recipe.run)
        gathered = _open_and_prepare(recipe, directory, logger) if is_main_process() else None
        # The other processes receive the recipe, completed from the text, and open what the main process has prepared.
        recipe = processes.gather(gathered.recipe if isinstance(gathered, Inputs) else gathered)[0]
        if isinstance(recipe, AlreadyFinished):
            raise recipe
        inputs = gathered if isinstance(gathered, Inputs) else open_inputs(recipe, directory)
        accelerator = resources.enter_context(start_accelerator(recipe.run))
        if accelerator.device.type == "cpu" and is_slowed_by_others():
            logger.info(
                "Warning: other programs use the cores, and training is slower than it could be, because torch was "
                "imported first. Import vanilla_transformer before torch, or set OMP_WAIT_POLICY=passive."
            )
        texts = [corpus.tokens for corpus in (inputs.train, inputs.dev) if corpus is not None]
        if texts != from_main_process(lambda: texts):
            raise RunError(
                f"{directory.path.absolute()} on {socket.gethostname()} has different training data from the main "
                "process. All processes must share one output directory."
            )
        checkpoint = from_main_process(partial(latest_checkpoint, directory.checkpoints))
        earlier = 0.0 if checkpoint is None else checkpoint.progress.seconds
        budget = TimeBudget(recipe.optimization.max_minutes, called if begun is None else begun, called, earlier)
        try:
            yield RunContext(task, directory, inputs, checkpoint, accelerator, processes, logger, budget)
        except Exception as error:
            with suppress(OSError):  # The disk may be full.
                logger.info(f"Ended by an error: {error}", shown=False)
            raise
        processes.gather(None)
        # Not after an error, because the end of NCCL's group waits for all processes.
        with logger.optional("the trackers cannot be closed"):
            accelerator.end_training()


def _open_and_prepare(recipe: Recipe, directory: RunDirectory, logger: RunLogger) -> Inputs | AlreadyFinished:
    """Prepares the tokens, or returns why the run is finished, which the main process sends to all others."""
    try:
        recipe = directory.open(recipe)
    except AlreadyFinished as finished:
        return finished
    return gather_inputs(recipe, directory, logger.info)


def _check_trackers(names: Sequence[str]) -> None:
    """Raises SettingError if a tracker does not exist or is not installed, which accelerate would ignore."""
    available = sorted(map(str, get_available_trackers()))
    for name in names:
        if name not in available:
            raise SettingError(
                f"There is no tracker {name} here: available are {', '.join(available) or 'none'}, others when "
                "their packages are installed."
            )
