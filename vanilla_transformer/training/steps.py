"""The steps of a run (section 5.1): the plan of an epoch, and the batches that one process computes of each step."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import numpy as np

from vanilla_transformer.data.batching import StepPlan, share
from vanilla_transformer.data.encoding import Rows
from vanilla_transformer.data.preparation import PreparedCorpus
from vanilla_transformer.tasks import Batch, RowRandom, Task
from vanilla_transformer.training.checkpoints import Progress
from vanilla_transformer.training.choices import Choices


@dataclass(frozen=True, slots=True)
class LocalStep:
    """The micro-batches of an optimizer step that one process computes.

    Attributes:
        items: The number of target tokens, or other loss items, in the micro-batches of all processes. The loss of the
            step is averaged over them.
    """

    epoch: int
    batches: list[Batch]
    items: int


def make_plan(corpus: PreparedCorpus, task: Task, choices: Choices) -> StepPlan:
    """Returns the plan that divides a corpus into steps."""
    return StepPlan(
        *corpus.lengths.values(),
        items=task.items,
        batch_tokens=choices.batch_tokens,
        batches_per_step=choices.batches_per_step,
        seed=choices.recipe.optimization.seed,
    )


def local_steps(
    corpus: PreparedCorpus,
    task: Task,
    choices: Choices,
    collate: Callable[[Rows, RowRandom], Batch],
    progress: Progress,
    *,
    rank: int = 0,
    processes: int = 1,
    pin: bool = False,
    joined_tokens: int = 0,
) -> Iterator[LocalStep]:
    """Yields the steps after a run's current position, epoch after epoch, without end.

    Args:
        collate: Pads rows of token ids to a batch of tensors.
        progress: The position of the run, which is before the first of these steps.
        rank: The number of this process among the `processes` that share each step.
        pin: Whether to put batches in memory that an accelerator can copy from while the CPU continues.
        joined_tokens: If all micro-batches of a step together have at most this many tokens, padding included, they
            become one.
    """
    done = progress.step_in_epoch
    for epoch in count(progress.epoch):
        drawn = corpus.of_epoch(epoch)
        plan = make_plan(drawn, task, choices)
        steps = plan.epoch(epoch)
        for index in range(done, len(steps)):
            pieces = share(steps[index], rank, processes)
            together = np.concatenate(pieces)
            if joined_tokens and plan.real_and_all_tokens(together)[1] <= joined_tokens:
                pieces = [together]
            batches = [collate(drawn.rows(rows), RowRandom(plan.seed, epoch, rows)) for rows in pieces]
            batches = list(map(pinned, batches)) if pin else batches
            # An epoch's batches are views of one array. A name for one of them would keep the whole array in memory.
            del pieces, together
            yield LocalStep(epoch, batches, steps[index].items)
        # For a large corpus, two epochs do not fit in memory.
        del drawn, plan, steps
        done = 0


def one_ahead(steps: Iterator[LocalStep]) -> Iterator[LocalStep]:
    """Yields the same steps. A thread makes the batches of the next step while the current one is computed."""
    thread = ThreadPoolExecutor(1)
    try:
        coming = thread.submit(next, steps)
        while True:
            step, coming = coming.result(), thread.submit(next, steps)
            yield step
    finally:
        thread.shutdown(wait=False)  # It may be planning the next epoch, which takes long and is not needed.


def pinned(batch: Batch) -> Batch:
    """Returns a batch in memory that an accelerator can copy from while the CPU continues."""
    return {name: tensor.pin_memory() for name, tensor in batch.items()}
