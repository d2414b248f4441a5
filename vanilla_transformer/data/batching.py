"""Section 5.1: batches of sentence pairs of about equal length, with a budget of tokens."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

LABEL_PADDING = -100
# A batch may end at this share of its rows where that keeps longer and shorter pairs apart.
LEAST_FILL = 0.9
# Keys of pairs are made in blocks, so that planning needs little more memory than the keys themselves.
BLOCK = 1 << 20

Indices = NDArray[np.int64]
Lengths = NDArray[np.integer]
TokenIds = Sequence[int] | NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Step:
    """The pairs of one update, as batches of indices, and the number of target tokens in them."""

    batches: tuple[Indices, ...]
    target_tokens: int


class StepPlan:
    """Divides all pairs of a corpus into steps, anew for each epoch.

    Pairs are sorted by the longer of their two sides, then by how much one side is longer, pairs of the same two
    lengths in random order, and cut into batches whose rows times longest side stay within
    ``batch_tokens / batches_per_step``. A pair that is longer makes a batch of its own. Batches of all lengths are
    then dealt to steps at random, such that the steps have about equally many target tokens. The last step of an
    epoch takes what is left over.

    A plan depends on its arguments and the epoch alone, so that every process makes the same one, and a run that is
    taken up again finds its place by the number of the step.

    Args:
        source_lengths, target_lengths: Tokens of each pair, in the order of the corpus.
        batch_tokens: Most tokens of a side in a step, padding included.
        batches_per_step: Batches that make a step.
        seed: Another seed gives another order.
    """

    def __init__(
        self, source_lengths: Lengths, target_lengths: Lengths, *, batch_tokens: int, batches_per_step: int, seed: int
    ):
        if len(source_lengths) != len(target_lengths) or not len(source_lengths):
            raise ValueError(
                f"a plan needs as many source as target lengths, got {len(source_lengths)} and {len(target_lengths)}"
            )
        if not 1 <= batches_per_step <= batch_tokens:
            raise ValueError(f"batch_tokens {batch_tokens} cannot be shared by {batches_per_step} batches per step")
        self.source_lengths = source_lengths
        self.target_lengths = target_lengths
        self.batches_per_step = batches_per_step
        self.batch_budget = batch_tokens // batches_per_step
        self.seed = seed

    def over(self, source_lengths: Lengths, target_lengths: Lengths) -> "StepPlan":
        """Return the same plan for pairs of other lengths."""
        plan = copy.copy(self)
        plan.source_lengths, plan.target_lengths = source_lengths, target_lengths
        return plan

    def epoch(self, epoch: int) -> list[Step]:
        """Return the steps of an epoch, every pair in one of them."""
        random = np.random.default_rng([self.seed, epoch])
        order, runs = _sorted_by_length(self.source_lengths, self.target_lengths, random)
        bounds, target_tokens = _cut(runs, self.batch_budget)
        batches = [order[start:end] for start, end in zip(bounds[:-1], bounds[1:], strict=True)]
        return [
            Step(tuple(batches[index] for index in group), int(target_tokens[group].sum()))
            for group in _deal(target_tokens, self.batches_per_step, random)
        ]


def batches_in_order(source_lengths: Lengths, target_lengths: Lengths, batch_tokens: int) -> list[Indices]:
    """Return batches of about equal length, the longest first, within `batch_tokens` a side: always the same ones."""
    if not len(source_lengths):
        return []
    order, runs = _sorted_by_length(source_lengths, target_lengths, None)
    bounds, _ = _cut(runs, batch_tokens)
    return [order[start:end] for start, end in zip(bounds[:-1], bounds[1:], strict=True)]


def share(step: Step, rank: int, world_size: int) -> list[Indices]:
    """Return the batches of a step that one of `world_size` processes computes; all get the same number of them.

    Whole batches go round. Those that are left over, fewer than processes, are divided by rows, into as few and large
    pieces as an equal part for each process allows: the processes make as many groups as divide both their number and
    that of the batches, and a group divides its batches alone. A process may get an empty piece.
    """
    whole = len(step.batches) // world_size * world_size
    left_over = len(step.batches) - whole
    groups = math.gcd(left_over, world_size)
    group, place = divmod(rank, world_size // groups)
    pieces = [np.array_split(batch, world_size // groups)[place] for batch in step.batches[whole + group :: groups]]
    return [*step.batches[rank:whole:world_size], *pieces]


def padding_share(plan: StepPlan, epoch: int) -> float:
    """Return how much of all tokens in the batches of an epoch, both sides together, is padding."""
    real = padded = 0
    for step in plan.epoch(epoch):
        for batch in step.batches:
            for lengths in (plan.source_lengths[batch], plan.target_lengths[batch]):
                real += int(lengths.sum())
                padded += len(batch) * int(lengths.max())
    return 1 - real / padded


def collate(rows: Sequence[tuple[TokenIds, TokenIds]], pad_id: int) -> dict[str, torch.Tensor]:
    """Pad pairs of token ids to a batch for the model: `input_ids`, `attention_mask` and `labels` (-100 is padding).

    No rows give a batch of one pair without labels: its loss is zero, and a process that has nothing to do in a step
    can go through the same motions as the others.
    """
    if not rows:
        nothing = torch.full((1, 1), pad_id)
        return {
            "input_ids": nothing,
            "attention_mask": torch.ones_like(nothing),
            "labels": torch.full_like(nothing, LABEL_PADDING),
        }
    input_ids, attention_mask = _padded([source for source, _ in rows], pad_id)
    labels, _ = _padded([target for _, target in rows], LABEL_PADDING)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def _padded(rows: Sequence[TokenIds], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, padding, dtype=np.int64)
    ids[mask] = np.concatenate(rows)
    return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Neighbours of the same two lengths in a sorted order, the longest first: how many, and how long."""

    counts: list[int]
    sources: list[int]
    targets: list[int]


def _sorted_by_length(
    source_lengths: Lengths, target_lengths: Lengths, random: np.random.Generator | None
) -> tuple[Indices, _Runs]:
    """Sort pairs by their longer side, the longest first, and among those by the difference of the sides.

    The direction of the difference turns with each length, so that at the turn the neighbours are alike in both.
    Without `random` pairs of the same lengths stay in the order of the corpus.

    One 64-bit key holds it all, [longer side | difference | random bits | index], and is sorted in place: this is
    what makes tens of millions of pairs a matter of seconds and of one array.
    """
    count = len(source_lengths)
    longest = int(max(source_lengths.max(), target_lengths.max()))
    index_bits, length_bits = count.bit_length(), longest.bit_length()
    random_bits = 64 - index_bits - length_bits - (length_bits + 1)
    if random_bits < 0:
        raise ValueError(f"{count} pairs of up to {longest} tokens are more than can be sorted: drop the longest")
    turn = int(random.integers(2)) if random else 0
    keys = np.empty(count, dtype=np.uint64)
    for start in range(0, count, BLOCK):
        block = slice(start, min(start + BLOCK, count))
        source = source_lengths[block].astype(np.int64)
        target = target_lengths[block].astype(np.int64)
        longer = np.maximum(source, target)
        difference = np.where((longer + turn) % 2 == 0, target - source, source - target) + longest
        key = (((longest - longer) << (length_bits + 1)) | difference).astype(np.uint64) << np.uint64(random_bits)
        if random:
            key |= random.integers(1 << random_bits, size=len(key), dtype=np.uint64)
        keys[block] = (key << np.uint64(index_bits)) | np.arange(block.start, block.stop, dtype=np.uint64)
    keys.sort()
    starts = _run_starts(keys, index_bits + random_bits)
    keys &= np.uint64((1 << index_bits) - 1)
    order = keys.view(np.int64)
    firsts = order[starts]
    counts = np.diff(np.append(starts, count))
    return order, _Runs(counts.tolist(), source_lengths[firsts].tolist(), target_lengths[firsts].tolist())


def _run_starts(keys: NDArray[np.uint64], free_bits: int) -> NDArray[np.int64]:
    """Return where the sorted keys, but for their lowest `free_bits`, change."""
    starts = [np.zeros(1, dtype=np.int64)]
    for start in range(0, len(keys), BLOCK):
        block = keys[start : start + BLOCK + 1] >> np.uint64(free_bits)
        starts.append(np.flatnonzero(block[1:] != block[:-1]) + (start + 1))
    return np.concatenate(starts)


def _cut(runs: _Runs, budget: int) -> tuple[list[int], NDArray[np.int64]]:
    """Cut runs into batches within the budget: return their bounds, and the target tokens of each."""
    bounds, target_tokens = [0], []
    run = used = 0
    while run < len(runs.counts):
        rows = max(1, budget // max(1, runs.sources[run], runs.targets[run]))
        alike = (runs.counts[run] - used) // rows
        if alike:
            bounds.extend(range(bounds[-1] + rows, bounds[-1] + alike * rows + 1, rows))
            target_tokens.extend([rows * runs.targets[run]] * alike)
            used += alike * rows
            if used == runs.counts[run]:
                run, used = run + 1, 0
        else:
            run, used, filled, tokens = _mixed_batch(runs, run, used, rows, math.ceil(rows * LEAST_FILL))
            bounds.append(bounds[-1] + filled)
            target_tokens.append(tokens)
    return bounds, np.array(target_tokens, dtype=np.int64)


def _mixed_batch(runs: _Runs, run: int, used: int, rows: int, least: int) -> tuple[int, int, int, int]:
    """Make a batch of several runs that ends, from the `least` to all of the `rows`, where least of it is padding.

    Returns the run where the next batch begins, how many of that run are used, the rows, and their target tokens.
    """
    filled = real = target_tokens = longest_source = longest_target = 0
    best, best_share = (run, used, 0, 0), -1.0
    while filled < rows and run < len(runs.counts):
        count = min(runs.counts[run] - used, (least if filled < least else rows) - filled)
        source, target = runs.sources[run], runs.targets[run]
        longest_source, longest_target = max(longest_source, source), max(longest_target, target)
        filled += count
        real += count * (source + target)
        target_tokens += count * target
        used += count
        if used == runs.counts[run]:
            run, used = run + 1, 0
        real_share = real / (filled * (longest_source + longest_target))
        if run == len(runs.counts) or (filled >= least and real_share >= best_share):
            best, best_share = (run, used, filled, target_tokens), real_share
    return best


def _deal(target_tokens: NDArray[np.int64], per_step: int, random: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Deal batches at random to steps, yielding the indices of each step's.

    They are dealt one to each step in rounds; in each round the largest goes to the step that has least so far.
    """
    shuffled = random.permutation(len(target_tokens))
    steps = len(shuffled) // per_step
    totals = np.zeros(steps, dtype=np.int64)
    rounds = []
    for batches in shuffled[: steps * per_step].reshape(per_step, steps):
        dealt = np.empty_like(batches)
        dealt[np.argsort(totals, kind="stable")] = batches[np.argsort(-target_tokens[batches], kind="stable")]
        totals += target_tokens[dealt]
        rounds.append(dealt)
    yield from random.permutation(np.stack(rounds, axis=1))
    if len(shuffled) > steps * per_step:
        yield shuffled[steps * per_step :]
