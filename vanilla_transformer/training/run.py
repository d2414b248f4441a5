"""A run from its first line of text to its last file: prepare the text, train, and write the model directory."""

import signal
from pathlib import Path

from vanilla_transformer.errors import RunError, SettingError
from vanilla_transformer.machine import torch_as_usual
from vanilla_transformer.progress import show
from vanilla_transformer.recipe.reading import named_recipe
from vanilla_transformer.recipe.schema import Recipe, in_words
from vanilla_transformer.training.checkpoints import has_checkpoints
from vanilla_transformer.training.choices import Choices, counted
from vanilla_transformer.training.finalize import finalize
from vanilla_transformer.training.loop import TrainingLoop
from vanilla_transformer.training.processes import StopRequest, explain_lost_processes, is_launched, is_main_process
from vanilla_transformer.training.run_directory import AlreadyFinished, RunDirectory, output_path
from vanilla_transformer.training.setup import RunContext, start_run
from vanilla_transformer.training.summary import TrainedRun
from vanilla_transformer.training.time_budget import SCHEDULE


def train(recipe: Recipe | str | Path | None = None, **settings: object) -> TrainedRun:
    """Trains from raw text to a model directory.

    `train("cmudict", max_steps=300)` is the same as `vanilla-transformer train cmudict --max-steps 300`, except that
    it uses only this process. An interrupted run in the same directory resumes from its newest checkpoint and ends
    with the same weights. If the run is finished, nothing is done.

    Args:
        recipe: A `Recipe`, the name of a recipe that comes with the package, or a YAML file. If it is None, the
            settings are the whole recipe.
        settings: Settings that override the recipe, such as `train=("corpus.en", "corpus.de")` and
            `output="my-model"`. A recipe with a name writes to a directory of that name unless `output` is given.

    Raises:
        ValueError, OSError: The data, the recipe, the output directory or the disk do not allow the run. The message
            says what to do.
        KeyboardInterrupt: Ctrl-C was pressed. Everything is saved.
        SystemExit: Another signal requested the end. Everything is saved. The code is 128 plus the signal's number.
    """
    if recipe is None or isinstance(recipe, Recipe):
        recipe = (recipe or Recipe()).with_options(**settings)
    else:
        recipe = named_recipe(recipe, settings)
    if (recipe.run.processes or 1) > 1 and not is_launched():
        raise SettingError(
            f"processes is {recipe.run.processes}, but a call from Python trains in one process: leave it "
            "out, or use the command `train`."
        )
    return train_by(recipe)


@torch_as_usual()
def train_by(recipe: Recipe, *, finish: bool = False, begun: float | None = None) -> TrainedRun:
    """Trains by a complete recipe; see `train`.

    Args:
        finish: Whether an interrupted run ends now, with the model of its last checkpoints.
        begun: The time at which the command began, on the clock of `time.perf_counter`; by default the call itself.
    """
    output = output_path(recipe)
    if finish and not has_checkpoints(RunDirectory(output).checkpoints):
        raise RunError(f"There is no checkpoint in {output} to make a model of.")
    try:
        with explain_lost_processes(), start_run(recipe, begun) as context:
            stopped_by = _follow(context, finish)
    except AlreadyFinished as finished:
        if is_main_process():
            show(str(finished))
        return TrainedRun(output)
    if stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
    if stopped_by:
        raise SystemExit(128 + stopped_by)
    return TrainedRun(output)


def _follow(context: RunContext, finish: bool) -> int:
    """Trains from the first step to the last file. Returns the number of the signal that stopped the run, or 0."""
    directory, accelerator, logger = context.directory, context.accelerator, context.logger
    choices = context.choose(context.inputs.recipe)
    _start_trackers(context, choices.recipe)
    loop = TrainingLoop(context, choices)
    if context.checkpoint is None and context.budget.minutes is not None:
        choices = _choose_for_time(context, choices, loop.seconds_per_step())
    loop.begin(choices)
    if accelerator.is_main_process:
        directory.reopen(choices.recipe)
    if finish:
        loop.max_steps = loop.progress.step
    with StopRequest() as stop:
        loop.run(stop)
    step = loop.progress.step
    if not loop.is_over:
        logger.info(
            f"Stopped after step {step:,} with everything saved: run the same command again to resume. With --finish, "
            "it averages the last checkpoints and finishes the model directory."
        )
        return stop.signal or signal.SIGTERM
    if context.budget.minutes is not None or loop.max_steps == step:
        choices = Choices.of(choices.recipe.with_options(max_steps=step, max_minutes=None))
    if accelerator.is_main_process:
        directory.write_recipe(choices.recipe)
    with loop.uncompiled():
        scores = finalize(context, choices, loop.plain_model, loop.progress)
    with logger.optional("the trackers cannot store the scores"):
        accelerator.log({f"{part}/{one.name}": one.value for part in scores for one in scores[part]}, step=step)
    return 0


def _choose_for_time(context: RunContext, choices: Choices, seconds_per_step: float) -> Choices:
    """Chooses the schedule again, for the number of steps that fit into the minutes of the run."""
    steps = context.budget.steps(seconds_per_step)
    context.logger.info(
        f"Speed: {seconds_per_step:.3g} s per step, so about {counted(steps, 'step')} fit into the time."
    )
    given = {name: context.inputs.recipe[name] for name in SCHEDULE}
    return context.choose(choices.recipe.with_options(**given), steps)


def _start_trackers(context: RunContext, recipe: Recipe) -> None:
    """Starts the experiment trackers of the recipe, and sends them its settings."""
    directory = context.directory.path
    settings = {name: in_words(one) if isinstance(one, list) else one for name, one in recipe.given().items()}
    mine = {"wandb": {"name": directory.absolute().name, "dir": str(directory)}}
    context.accelerator.init_trackers("vanilla-transformer", settings, mine)
