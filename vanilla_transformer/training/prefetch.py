"""Batches that are made ready while the step before them is computed."""

import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import torch

from vanilla_transformer.data.batching import LABEL_PADDING, StepPlan, collate, share
from vanilla_transformer.data.preparation import PreparedCorpus

Item = TypeVar("Item")
Batch = dict[str, torch.Tensor]
_LOOKS_FOR_THE_END = 0.1  # Seconds between two looks at whether somebody still wants what is made.


@dataclass(frozen=True, slots=True)
class FedStep:
    """One process's batches of a step; `target_tokens` are those of all processes."""

    epoch: int
    steps_in_epoch: int
    batches: list[Batch]
    target_tokens: int

    def tokens(self) -> tuple[int, int]:
        """Tokens of both sides of this process's batches: those of text, and all with padding."""
        real = all_tokens = 0
        for batch in self.batches:
            real += int(batch["attention_mask"].sum()) + int((batch["labels"] != LABEL_PADDING).sum())
            all_tokens += batch["input_ids"].numel() + batch["labels"].numel()
        return real, all_tokens


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the data to begin, and as which of how many processes."""

    epoch: int
    step_in_epoch: int
    rank: int = 0
    processes: int = 1


def feed(plan: StepPlan, corpus: PreparedCorpus, pad_id: int, place: Place, pin: bool) -> Iterator[FedStep]:
    """Gives the steps from a place on, epoch after epoch, without end.

    Args:
        plan: The steps of each epoch.
        corpus: The pairs that the plan counts.
        pad_id: Stands where a source is shorter than its batch.
        place: Where to begin.
        pin: Puts the batches where an accelerator fetches them by itself, while the processor goes on.
    """
    epoch, done = place.epoch, place.step_in_epoch
    while True:
        pairs = corpus.of_epoch(epoch)
        steps = plan.over(pairs.source_lengths, pairs.target_lengths).epoch(epoch)
        for index in range(done, len(steps)):
            batches = [collate(pairs.rows(rows), pad_id) for rows in share(steps[index], place.rank, place.processes)]
            if pin:
                batches = [{name: tensor.pin_memory() for name, tensor in batch.items()} for batch in batches]
            yield FedStep(epoch, len(steps), batches, steps[index].target_tokens)
        # Of a large corpus two epochs are too much to hold.
        del pairs, steps
        epoch, done = epoch + 1, 0


def in_background(items: Iterator[Item], ahead: int) -> Generator[Item]:
    """Gives the same items, the next few of them made by a thread meanwhile; closing it ends the thread.

    Args:
        items: What to make; an error in it is raised here, in the place of the item that it prevented.
        ahead: How many items may wait.
    """
    ready: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(ahead)
    nobody_waits = threading.Event()

    def hand_over(item: Item | None, error: BaseException | None) -> None:
        while not nobody_waits.is_set():
            with suppress(queue.Full):
                ready.put((item, error), timeout=_LOOKS_FOR_THE_END)
                break

    def work() -> None:
        error: BaseException = StopIteration()
        try:
            for item in items:
                hand_over(item, None)
                if nobody_waits.is_set():
                    return
        except BaseException as failure:
            error = failure
        hand_over(None, error)

    # A process that is asked to end does not wait for an epoch that is just being planned.
    threading.Thread(target=work, name="batches", daemon=True).start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            assert item is not None
            yield item
    finally:
        nobody_waits.set()
