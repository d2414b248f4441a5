"""Section 5.1: batches of rows of about equal length, with a budget of tokens."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

LABEL_PADDING = -100
# Share of its rows at which a batch may end if that keeps longer and shorter pairs apart.
MIN_FILL = 0.9
# Sort keys are made in blocks, so that planning needs little more memory than the keys themselves.
BLOCK = 1 << 20

Indices = NDArray[np.int64]
Lengths = NDArray[np.integer]
TokenIds = Sequence[int] | NDArray[np.integer]
Items = Callable[..., NDArray[np.integer]]
"""Function that returns the loss items of each row from its lengths, column by column."""


@dataclass(frozen=True, slots=True)
class Step:
    """The rows of one update, as batches of indices, and the number of items that its loss is averaged over."""

    batches: tuple[Indices, ...]
    items: int


class StepPlan:
    """Divides all rows of a corpus into steps, anew for each epoch.

    Rows are sorted by the longer of their two sides, then by how much one side is longer, rows of equal lengths in
    random order, and cut into batches whose rows times longest side stay within ``batch_tokens / batches_per_step``. A
    longer row makes a batch of its own. Batches of all lengths are then dealt to steps at random, such that the steps
    have about equally many items of the loss. The last step of an epoch takes the rest. Rows with a single side are
    planned as if the other were as long.

    A plan depends only on its arguments and the epoch, so that every process makes the same one, and a resumed run
    finds its place by the number of the step.

    Args:
        lengths: Tokens of each row, in the order of the corpus; one or two sides.
        batch_tokens: Maximum tokens of a side in a step, padding included.
    """

    def __init__(self, *lengths: Lengths, items: Items, batch_tokens: int, batches_per_step: int, seed: int):
        if not 1 <= batches_per_step <= batch_tokens:
            raise ValueError(f"batch_tokens {batch_tokens} cannot be shared by {batches_per_step} batches per step")
        self.lengths, self.items = lengths, items
        self.batches_per_step = batches_per_step
        self.batch_budget = batch_tokens // batches_per_step
        self.seed = seed

    def epoch(self, epoch: int) -> list[Step]:
        """Returns the steps of an epoch: every row is in one of them."""
        random = np.random.default_rng([self.seed, epoch])
        order, runs = _sorted_by_length(self.lengths, self.items, random)
        bounds, items = _cut(runs, self.batch_budget)
        batches = [order[start:end] for start, end in zip(bounds[:-1], bounds[1:], strict=True)]
        return [
            Step(tuple(batches[index] for index in group), int(items[group].sum()))
            for group in _deal(items, self.batches_per_step, random)
        ]

    def real_and_all_tokens(self, batch: Indices) -> tuple[int, int]:
        """Returns the tokens of a batch, all sides together: without padding, and with it."""
        if not len(batch):
            return 0, 0
        sides = [lengths[batch] for lengths in self.lengths]
        return sum(int(side.sum()) for side in sides), sum(len(batch) * int(side.max()) for side in sides)


def share(step: Step, rank: int, world_size: int) -> list[Indices]:
    """Returns the batches of a step that one of `world_size` processes computes; all get the same number.

    Whole batches are handed out in rounds. The remaining ones, fewer than processes, are divided by rows into as few
    and large pieces as an equal part for each process allows: the processes form as many groups as divide both their
    number and that of the batches, and each group divides its own batches. A process may get an empty piece.
    """
    whole = len(step.batches) // world_size * world_size
    left_over = len(step.batches) - whole
    groups = math.gcd(left_over, world_size)
    group, place = divmod(rank, world_size // groups)
    pieces = [np.array_split(batch, world_size // groups)[place] for batch in step.batches[whole + group :: groups]]
    return [*step.batches[rank:whole:world_size], *pieces]


def pad(rows: Sequence[TokenIds], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns rows of ids as one tensor (rows, longest) filled up with `padding`, and a mask that is 1 on the ids.

    Without rows, returns a row of padding alone: a process with nothing to do in a step computes with it. It has two
    tokens, because of one a language model predicts nothing, and Bahdanau's decoder shows no step.
    """
    rows = rows if len(rows) else [[padding, padding]]
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, padding, dtype=np.int64)
    ids[mask] = np.concatenate(rows)
    return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of equal lengths in a sorted order, longest first: their sizes, lengths and items."""

    counts: list[int]
    sources: list[int]
    targets: list[int]
    items: list[int]


def _sorted_by_length(lengths: Sequence[Lengths], items: Items, random: np.random.Generator) -> tuple[Indices, _Runs]:
    """Sorts rows by their longer side, longest first, and then by the difference of the sides.

    The direction of the difference alternates with each length, so that neighbours at the change are alike in both
    sides.

    One 64-bit key [longer side | difference | random bits | index] holds everything and is sorted in place: so tens of
    millions of rows take only seconds and one array.
    """
    source_lengths, target_lengths = lengths[0], lengths[-1]
    count = len(source_lengths)
    longest = int(max(source_lengths.max(), target_lengths.max()))
    index_bits, length_bits = count.bit_length(), longest.bit_length()
    random_bits = 64 - index_bits - length_bits - (length_bits + 1)
    if random_bits < 0:
        raise ValueError(f"{count} rows of up to {longest} tokens are more than can be sorted: drop the longest")
    turn = int(random.integers(2))
    keys = np.empty(count, dtype=np.uint64)
    for start in range(0, count, BLOCK):
        block = slice(start, min(start + BLOCK, count))
        source = source_lengths[block].astype(np.int64)
        target = target_lengths[block].astype(np.int64)
        longer = np.maximum(source, target)
        difference = np.where((longer + turn) % 2 == 0, target - source, source - target) + longest
        key = (((longest - longer) << (length_bits + 1)) | difference).astype(np.uint64) << np.uint64(random_bits)
        key |= random.integers(1 << random_bits, size=len(key), dtype=np.uint64)
        keys[block] = (key << np.uint64(index_bits)) | np.arange(block.start, block.stop, dtype=np.uint64)
    keys.sort()
    starts = _run_starts(keys, index_bits + random_bits)
    keys &= np.uint64((1 << index_bits) - 1)
    order = keys.view(np.int64)
    firsts = order[starts]
    counts = np.diff(np.append(starts, count))
    sources, targets = source_lengths[firsts].tolist(), target_lengths[firsts].tolist()
    return order, _Runs(
        counts.tolist(), sources, targets, items(*(side[firsts].astype(np.int64) for side in lengths)).tolist()
    )


def _run_starts(keys: NDArray[np.uint64], free_bits: int) -> NDArray[np.int64]:
    """Returns the places where the sorted keys, without their lowest `free_bits`, change."""
    starts = [np.zeros(1, dtype=np.int64)]
    for start in range(0, len(keys), BLOCK):
        block = keys[start : start + BLOCK + 1] >> np.uint64(free_bits)
        starts.append(np.flatnonzero(block[1:] != block[:-1]) + (start + 1))
    return np.concatenate(starts)


def _cut(runs: _Runs, budget: int) -> tuple[list[int], NDArray[np.int64]]:
    """Cuts runs into batches within the budget: returns their bounds, and the items of each."""
    bounds, items = [0], []
    run = used = 0
    while run < len(runs.counts):
        rows = max(1, budget // max(1, runs.sources[run], runs.targets[run]))
        alike = (runs.counts[run] - used) // rows
        if alike:
            bounds.extend(range(bounds[-1] + rows, bounds[-1] + alike * rows + 1, rows))
            items.extend([rows * runs.items[run]] * alike)
            used += alike * rows
            if used == runs.counts[run]:
                run, used = run + 1, 0
        else:
            run, used, filled, found = _mixed_batch(runs, run, used, rows, math.ceil(rows * MIN_FILL))
            bounds.append(bounds[-1] + filled)
            items.append(found)
    return bounds, np.array(items, dtype=np.int64)


def _mixed_batch(runs: _Runs, run: int, used: int, rows: int, min_rows: int) -> tuple[int, int, int, int]:
    """Makes a batch of `min_rows` to `rows` rows from several runs; it ends where its share of padding is lowest.

    Returns the run where the next batch begins, the used part of that run, the rows, and their items.
    """
    filled = real = items = longest_source = longest_target = 0
    best, best_share = (run, used, 0, 0), -1.0
    while filled < rows and run < len(runs.counts):
        count = min(runs.counts[run] - used, (min_rows if filled < min_rows else rows) - filled)
        source, target = runs.sources[run], runs.targets[run]
        longest_source, longest_target = max(longest_source, source), max(longest_target, target)
        filled += count
        real += count * (source + target)
        items += count * runs.items[run]
        used += count
        if used == runs.counts[run]:
            run, used = run + 1, 0
        real_share = real / (filled * (longest_source + longest_target))
        if run == len(runs.counts) or (filled >= min_rows and real_share >= best_share):
            best, best_share = (run, used, filled, items), real_share
    return best


def _deal(items: NDArray[np.int64], per_step: int, random: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Deals batches at random to steps, yielding the indices of each step's batches.

    Each round deals one batch to each step, the largest to the step with the fewest items so far.
    """
    shuffled = random.permutation(len(items))
    steps = len(shuffled) // per_step
    if not steps:
        yield shuffled
        return
    totals = np.zeros(steps, dtype=np.int64)
    rounds = []
    for batches in shuffled[: steps * per_step].reshape(per_step, steps):
        dealt = np.empty_like(batches)
        dealt[np.argsort(totals, kind="stable")] = batches[np.argsort(-items[batches], kind="stable")]
        totals += items[dealt]
        rounds.append(dealt)
    yield from random.permutation(np.stack(rounds, axis=1))
    if len(shuffled) > steps * per_step:
        yield shuffled[steps * per_step :]
