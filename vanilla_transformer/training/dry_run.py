"""A run without training: all processes start, agree, prepare the text, and report what each would do."""

import socket
from collections.abc import Iterator, Sequence
from itertools import count, islice

from accelerate import Accelerator
from accelerate.utils import gather_object

from vanilla_transformer.analysis.devices import describe_device
from vanilla_transformer.checkpointing.sharded import is_sharded
from vanilla_transformer.checkpointing.store import Progress, latest_complete_checkpoint
from vanilla_transformer.data.batching import Indices, Step, StepPlan, share
from vanilla_transformer.data.token_corpus import TrainingCorpus
from vanilla_transformer.distributed.peers import is_main_process
from vanilla_transformer.distributed.processes import broadcast_from_main
from vanilla_transformer.recipe.schema import Recipe, ResolvedRecipe
from vanilla_transformer.tasks import task_for
from vanilla_transformer.training.prefetch import make_plan
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
        position = broadcast_from_main(accelerator, lambda: _position(context))
        ahead = _steps_from(position, inputs.train, recipe)
        steps = list(islice(ahead, min(STEPS_SHOWN, recipe.optimization.max_steps - position.step)))
        mine = "\n".join([_name(accelerator), *_lines(steps, position, accelerator, task_for(recipe).form.unit)])
        everyone = gather_object([mine])
        if accelerator.is_main_process:
            print(_overview(recipe, context, len(inputs.train), steps, position), *everyone, sep="\n")


def _position(context: RunContext) -> Progress:
    checkpoint = latest_complete_checkpoint(context.run.checkpoints, context.logger.info)
    return checkpoint.progress() if checkpoint is not None else Progress()


def _steps_from(position: Progress, corpus: TrainingCorpus, recipe: ResolvedRecipe) -> Iterator[tuple[StepPlan, Step]]:
    """Yields the coming steps, each with the plan of its part of an epoch."""
    first, done = position.part, position.step_in_part
    for epoch in count(position.epoch):
        for part in corpus.epoch_parts(epoch, first):
            plan = make_plan(part.corpus, recipe)
            for step in plan.epoch(epoch, part.number)[done:]:
                yield plan, step
            done = 0
        first = 0


def _overview(
    recipe: ResolvedRecipe, context: RunContext, pairs: int, steps: Sequence[tuple[StepPlan, Step]], position: Progress
) -> str:
    accelerator, run, unit = context.accelerator, context.run, task_for(recipe).form.unit
    weights = "holds a part of the weights" if is_sharded(accelerator) else "holds all weights"
    tokens = f"{recipe.optimization.batch_tokens:,} tokens a side in {recipe.optimization.batches_per_step} batches"
    return "\n".join(
        [
            f"Dry run of {accelerator.num_processes} processes; each {weights} and reads its own {unit} alone.",
            f"reads: {recipe.data.train[0].prepared or run.prepared} ({pairs:,} {unit}, by position)",
            f"writes: {run.path} (the main process; {', '.join(_written(recipe))})",
            f"begins: after step {position.step:,} of {recipe.optimization.max_steps:,}",
            f"a step: up to {tokens}, on any number of processes",
            *(
                f"  step {number:,}: {_sizes(plan, step.batches, unit)}"
                for number, (plan, step) in enumerate(steps, start=position.step + 1)
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


def _lines(
    steps: Sequence[tuple[StepPlan, Step]], position: Progress, accelerator: Accelerator, unit: str
) -> list[str]:
    return [
        f"  step {number:,}: {_sizes(plan, share(step, accelerator.process_index, accelerator.num_processes), unit)}"
        for number, (plan, step) in enumerate(steps, start=position.step + 1)
    ]


def _sizes(plan: StepPlan, batches: Sequence[Indices], unit: str) -> str:
    count, pairs = len(batches), sum(map(len, batches))
    tokens = " + ".join(f"{sum(int(lengths[rows].sum()) for rows in batches):,}" for lengths in plan.lengths)
    return f"{count} {'batch' if count == 1 else 'batches'}, {pairs:,} {unit}, {tokens} tokens"
