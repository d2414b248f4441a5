"""Batches that are prepared while the step before them is computed."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

import numpy as np

from vanilla_transformer.data.batching import StepPlan, share
from vanilla_transformer.data.token_corpus import PreparedCorpus, Rows
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import Batch, RowRandom, task_for
from vanilla_transformer.training.checkpoints import Progress

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class LocalStep:
    """One process's batches of a step.

    Attributes:
        epoch_done: Share of the epoch that is done after the step.
        items: Number of items that the step's loss is averaged over, in the batches of all processes.
        real_tokens: Tokens in this process's batches without padding; `all_tokens` includes padding.
    """

    epoch: int
    epoch_done: float
    batches: list[Batch]
    items: int
    real_tokens: int
    all_tokens: int


def local_steps(
    make_plan: Callable[[PreparedCorpus], StepPlan],
    corpus: PreparedCorpus,
    collate: Callable[[Rows, RowRandom], Batch],
    progress: Progress,
    *,
    rank: int = 0,
    processes: int = 1,
    pin: bool = False,
    joined_tokens: int = 0,
) -> Iterator[LocalStep]:
    """Yields the steps that follow, epoch after epoch, without end.

    Args:
        make_plan: Divides the rows of an epoch into steps.
        corpus: The rows of all epochs.
        collate: Makes a batch from rows.
        progress: What is done before the first of them.
        rank: This process among the `processes`.
        processes: Number of processes that share each step.
        pin: Pins the batches in memory, so that an accelerator copies them while the processor continues.
        joined_tokens: A step that would have at most so many tokens as one batch, padding included, is one batch.
    """
    done = progress.step_in_epoch
    for epoch in count(progress.epoch):
        drawn = corpus.of_epoch(epoch)
        plan = make_plan(drawn)
        steps = plan.epoch(epoch)
        for index in range(done, len(steps)):
            batches, tokens = [], []
            pieces = share(steps[index], rank, processes)
            together = np.concatenate(pieces)
            if joined_tokens and plan.real_and_all_tokens(together)[1] <= joined_tokens:
                pieces = [together]
            for rows in pieces:
                batch = collate(drawn.rows(rows), RowRandom(plan.seed, epoch, rows))
                batches.append(pinned(batch) if pin else batch)
                tokens.append(plan.real_and_all_tokens(rows))
                # An epoch's batches are views of one array: a name for one of them would keep the whole array.
                del rows
            del pieces, together
            real, padded = map(sum, zip(*tokens, strict=True))
            yield LocalStep(epoch, (index + 1) / len(steps), batches, steps[index].items, real, padded)
        # For a large corpus two epochs do not fit in memory.
        del drawn, plan, steps
        done = 0


def pinned(batch: Batch) -> Batch:
    """Returns the batch in memory that an accelerator copies from while the processor continues."""
    return {name: tensor.pin_memory() for name, tensor in batch.items()}


def prefetch(items: Iterator[Item], ahead: int) -> Generator[Item]:
    """Yields the same items while a thread prepares the next few; an error in making one is raised in its place."""
    thread = ThreadPoolExecutor(1, "batches")
    try:
        waiting = deque(thread.submit(next, items) for _ in range(ahead))
        while True:
            item = waiting.popleft().result()
            waiting.append(thread.submit(next, items))
            yield item
    except StopIteration:
        return
    finally:
        thread.shutdown(cancel_futures=True)


def make_plan(corpus: PreparedCorpus, recipe: Recipe) -> StepPlan:
    """Returns the recipe's batches for a corpus."""
    return StepPlan(
        *corpus.lengths.values(),
        items=task_for(recipe).items,
        batch_tokens=recipe.optimization.batch_tokens,
        batches_per_step=recipe.optimization.batches_per_step,
        seed=recipe.optimization.seed,
    )
