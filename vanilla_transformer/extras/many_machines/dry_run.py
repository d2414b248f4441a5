"""A run without training: all processes start, agree, prepare the text, and report what each would do."""

import socket
from collections.abc import Sequence
from functools import partial
from itertools import islice

from accelerate import Accelerator
from accelerate.utils import gather_object

from vanilla_transformer.analysis.devices import describe_device
from vanilla_transformer.checkpointing.store import Progress
from vanilla_transformer.data.batching import Indices, StepPlan, share
from vanilla_transformer.distributed.peers import is_main_process
from vanilla_transformer.distributed.processes import sharding_of
from vanilla_transformer.recipe.schema import Recipe, ResolvedRecipe
from vanilla_transformer.tasks import task_for
from vanilla_transformer.training.prefetch import PlannedStep, make_plan, planned_steps
from vanilla_transformer.training.run_directory import AlreadyFinished
from vanilla_transformer.training.setup import RunContext, start_run

STEPS_SHOWN = 3


def dry_run(recipe: Recipe) -> None:
    """Prints, from the main process, what each process of a run would read and compute in its next steps.

    The vocabulary and the tokens are those of the run, which finds them in the output directory.

    Raises:
        RecipeError, ValueError, OSError: The run itself would fail in the same way.
    """
    try:
        _dry_run(recipe)
    except AlreadyFinished as finished:
        if is_main_process():
            print(finished)


def _dry_run(given: Recipe) -> None:
    with start_run(given) as context:
        recipe, inputs, accelerator = context.recipe, context.inputs, context.accelerator
        position = context.checkpoint.progress() if context.checkpoint is not None else Progress()
        ahead = planned_steps(partial(make_plan, recipe=recipe), inputs.train, position)
        steps = list(islice(ahead, min(STEPS_SHOWN, recipe.optimization.max_steps - position.step)))
        mine = "\n".join([_name(accelerator), *_lines(steps, position, accelerator, task_for(recipe).form.unit)])
        everyone = gather_object([mine])
        if accelerator.is_main_process:
            print(_overview(recipe, context, len(inputs.train), steps, position), *everyone, sep="\n")


def _overview(
    recipe: ResolvedRecipe, context: RunContext, pairs: int, steps: Sequence[PlannedStep], position: Progress
) -> str:
    accelerator, run, unit = context.accelerator, context.run, task_for(recipe).form.unit
    weights = "holds all weights" if sharding_of(accelerator) is None else "holds a part of the weights"
    tokens = f"{recipe.optimization.batch_tokens:,} tokens a side in {recipe.optimization.batches_per_step} batches"
    return "\n".join(
        [
            f"Dry run of {accelerator.num_processes} processes; each {weights} and reads its own {unit} alone.",
            f"reads: {recipe.data.train[0].prepared or run.prepared} ({pairs:,} {unit}, by position)",
            f"writes: {run.path} (the main process; {', '.join(_written(recipe))})",
            f"begins: after step {position.step:,} of {recipe.optimization.max_steps:,}",
            f"a step: up to {tokens}, on any number of processes",
            *(
                f"  step {number:,}: {_sizes(planned.plan, planned.step.batches, unit)}"
                for number, planned in enumerate(steps, start=position.step + 1)
            ),
        ]
    )


def _written(recipe: ResolvedRecipe) -> list[str]:
    return [
        "a checkpoint every step"
        if recipe.run.save_steps == 1
        else f"a checkpoint every {recipe.run.save_steps:,} steps",
        "log",
        "model",
        *recipe.run.trackers,
    ]


def _name(accelerator: Accelerator) -> str:
    device = accelerator.device
    return (
        f"process {accelerator.process_index} of {accelerator.num_processes}: on {socket.gethostname()}, "
        f"local rank {accelerator.local_process_index}, {device} ({describe_device(device, 1)})"
    )


def _lines(steps: Sequence[PlannedStep], position: Progress, accelerator: Accelerator, unit: str) -> list[str]:
    rank, processes = accelerator.process_index, accelerator.num_processes
    return [
        f"  step {number:,}: {_sizes(planned.plan, share(planned.step, rank, processes), unit)}"
        for number, planned in enumerate(steps, start=position.step + 1)
    ]


def _sizes(plan: StepPlan, batches: Sequence[Indices], unit: str) -> str:
    count, pairs = len(batches), sum(map(len, batches))
    tokens = " + ".join(f"{sum(int(lengths[rows].sum()) for rows in batches):,}" for lengths in plan.lengths)
    return f"{count} {'batch' if count == 1 else 'batches'}, {pairs:,} {unit}, {tokens} tokens"
