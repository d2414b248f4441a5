"""Batches that are prepared while the step before them is computed."""

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, TypeVar

from vanilla_transformer.data.batching import Step, StepPlan, share
from vanilla_transformer.data.token_corpus import EpochPart, PreparedCorpus, Rows, TrainingCorpus
from vanilla_transformer.recipe.schema import ResolvedRecipe
from vanilla_transformer.tasks import Batch, RowRandom, task_for
from vanilla_transformer.training.checkpoints import Progress

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class LocalStep:
    """One process's batches of a step.

    Attributes:
        part: The part of the epoch that the step belongs to.
        epoch_done: Share of the epoch that is done after the step.
        items: Number of items that the step's loss is averaged over, in the batches of all processes.
        real_tokens: Tokens in this process's batches without padding; `all_tokens` includes padding.
    """

    epoch: int
    part: int
    epoch_done: float
    batches: list[Batch]
    items: int
    real_tokens: int
    all_tokens: int


def local_steps(
    make_plan: Callable[[PreparedCorpus], StepPlan],
    corpus: TrainingCorpus,
    collate: Callable[[Rows, RowRandom], Batch],
    progress: Progress,
    *,
    rank: int = 0,
    processes: int = 1,
    pin: bool = False,
) -> Iterator[LocalStep]:
    """Yields the steps that follow, part after part and epoch after epoch, without end.

    Args:
        make_plan: Divides the rows of a part into steps.
        corpus: The rows of all epochs.
        collate: Makes a batch from rows.
        progress: What is done before the first of them.
        rank: This process among the `processes`.
        processes: Number of processes that share each step.
        pin: Pins the batches in memory, so that an accelerator copies them while the processor continues.
    """
    for planned in planned_steps(make_plan, corpus, progress):
        plan, part = planned.plan, planned.part
        batches, tokens = [], []
        for rows in share(planned.step, rank, processes):
            random = RowRandom(plan.seed, planned.epoch, part.corpus.row_numbers(rows))
            batch = collate(part.corpus.rows(rows), random)
            batches.append({name: tensor.pin_memory() for name, tensor in batch.items()} if pin else batch)
            tokens.append(plan.real_and_all_tokens(rows))
            # An epoch's batches are views of one array: a name for one of them would keep the whole array.
            del rows, random
        real, padded = map(sum, zip(*tokens, strict=True))
        yield LocalStep(planned.epoch, part.number, planned.epoch_done, batches, planned.step.items, real, padded)
        # For a large corpus two parts do not fit in memory.
        del planned, plan, part


class PlannedStep(NamedTuple):
    """A step of all processes: its rows, and the part of the epoch with the plan that it belongs to."""

    epoch: int
    part: EpochPart
    plan: StepPlan
    step: Step
    epoch_done: float


def planned_steps(
    make_plan: Callable[[PreparedCorpus], StepPlan], corpus: TrainingCorpus, progress: Progress
) -> Iterator[PlannedStep]:
    """Yields the rows of the steps that follow, part after part and epoch after epoch, without end."""
    first, done = progress.part, progress.step_in_part
    for epoch in count(progress.epoch):
        for part in corpus.epoch_parts(epoch, first):
            plan = make_plan(part.corpus)
            steps = plan.epoch(epoch, part.number)
            for index in range(done, len(steps)):
                over = part.before + part.share * ((index + 1) / len(steps))
                yield PlannedStep(epoch, part, plan, steps[index], over)
            del part, plan, steps
            done = 0
        first = 0


def prefetch(items: Iterator[Item], ahead: int) -> Generator[Item]:
    """Yields the same items while a thread prepares the next few; closing the generator ends the thread.

    Args:
        items: The items to make; an error in making one is raised here in its place.
        ahead: Number of items that may wait.
    """
    ready: queue.SimpleQueue[tuple[Item | None, BaseException | None]] = queue.SimpleQueue()
    room, nobody_waits = threading.Semaphore(ahead), threading.Event()

    def work() -> None:
        error: BaseException = StopIteration()
        try:
            for item in items:
                ready.put((item, None))
                room.acquire()
                if nobody_waits.is_set():
                    return
        except BaseException as failure:
            error = failure
        ready.put((None, error))

    # A process that is asked to stop does not wait for an epoch that is being planned.
    threading.Thread(target=work, name="batches", daemon=True).start()
    try:
        while True:
            item, error = ready.get()
            room.release()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            assert item is not None
            yield item
    finally:
        nobody_waits.set()
        room.release()


def make_plan(corpus: PreparedCorpus, recipe: ResolvedRecipe) -> StepPlan:
    """Returns the recipe's batches for a corpus."""
    return StepPlan(
        *corpus.lengths.values(),
        items=task_for(recipe).items,
        batch_tokens=recipe.optimization.batch_tokens,
        batches_per_step=recipe.optimization.batches_per_step,
        seed=recipe.optimization.seed,
    )
