import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from refusals import refused

from vanilla_transformer.data import batching
from vanilla_transformer.data.batching import Step, StepPlan, share

lengths_of_pairs = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=200)


def text_lengths(count, seed=0):
    """Lengths as text has them: skewed, and alike on the two sides."""
    random = np.random.default_rng(seed)
    sources = np.exp(random.normal(2.6, 0.5, count)).clip(1, 120)
    targets = (sources * np.exp(random.normal(0.05, 0.2, count))).clip(1, 120)
    return sources.astype(np.int32), targets.astype(np.int32)


def make_plan(lengths, batch_tokens=4096, batches_per_step=4, seed=1):
    budget = {"batch_tokens": batch_tokens, "batches_per_step": batches_per_step}
    return StepPlan(*lengths, items=lambda source, target: target, **budget, seed=seed)


def padding_share(plan, epoch):
    batches = [plan.real_and_all_tokens(batch) for batch in batches_of(plan.epoch(epoch))]
    real, padded = map(sum, zip(*batches, strict=True))
    return 1 - real / padded


def batches_of(steps):
    return [batch for step in steps for batch in step.batches]


def in_order(steps):
    return [batch.tolist() for batch in batches_of(steps)]


@settings(max_examples=50)
@given(
    lengths=lengths_of_pairs,
    batch_tokens=st.integers(4, 300) | st.just(10**18),
    batches_per_step=st.integers(1, 4) | st.just(10**15),
    epoch=st.integers(0, 9),
)
def test_an_epoch_has_each_pair_once_within_the_budget(lengths, batch_tokens, batches_per_step, epoch):
    batches_per_step = min(batches_per_step, batch_tokens)
    sources, targets = np.array(lengths, dtype=np.int32).T
    steps = make_plan((sources, targets), batch_tokens, batches_per_step).epoch(epoch)
    assert in_order(steps) == in_order(make_plan((sources, targets), batch_tokens, batches_per_step).epoch(epoch))
    assert sorted(np.concatenate(batches_of(steps))) == list(range(len(lengths)))
    for batch in batches_of(steps):
        longest = max(sources[batch].max(), targets[batch].max())
        assert len(batch) == 1 or len(batch) * int(longest) <= batch_tokens // batches_per_step
    assert all(len(step.batches) == batches_per_step for step in steps[:-1])
    assert 1 <= len(steps[-1].batches) <= batches_per_step
    assert [step.items for step in steps] == [sum(targets[b].sum() for b in step.batches) for step in steps]


def test_pairs_of_the_same_lengths_meet_others_in_another_epoch_and_with_another_seed():
    lengths = np.full(4000, 10), np.full(4000, 12)
    plans = [(1, 0), (1, 1), (2, 0)]
    steps = [make_plan(lengths, 1200, 1, seed).epoch(epoch) for seed, epoch in plans]
    mates = [next(set(batch) for batch in in_order(several) if 0 in batch) for several in steps]
    assert {*map(len, mates)} == {100}
    assert len(mates[0] & mates[1]) < 20 and len(mates[0] & mates[2]) < 20


def test_steps_are_alike_in_tokens_and_over_an_epoch_and_hardly_padded():
    lengths = sources, _ = text_lengths(100_000)
    assert padding_share(make_plan(lengths, 8192, 2), 0) < 0.03
    few = make_plan((np.array([2, 4]), np.array([6, 6])), batch_tokens=12, batches_per_step=1)
    assert padding_share(few, 0) == pytest.approx(2 / 20)
    tokens = np.array([step.items for step in make_plan(lengths, 8192, 8).epoch(0)[:-1]])
    assert tokens.std() < 0.02 * tokens.mean()
    for figures in (
        [np.mean([sources[batch].mean() for batch in step.batches]) for step in make_plan(lengths).epoch(0)],
        [step.items for step in make_plan(lengths, batches_per_step=1).epoch(0)],
    ):
        early, late = np.array_split(figures, 2)
        assert early.mean() == pytest.approx(late.mean(), rel=0.05)


def test_leftover_pairs_of_the_last_step_are_not_always_short():
    plan, (sources, _) = make_plan(text_lengths(20_000)), text_lengths(20_000)
    leftovers = [np.concatenate(plan.epoch(epoch)[-1].batches) for epoch in range(10)]
    assert max(sources[pairs].mean() for pairs in leftovers) > sources.mean()


def test_planning_takes_little_more_than_a_key_for_each_pair(monkeypatch):
    monkeypatch.setattr(batching, "BLOCK", 1 << 14)
    plan = make_plan(text_lengths(count := 500_000), 25_000, 6)
    tracemalloc.start()
    steps = plan.epoch(0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert steps and peak < 12 * count


def test_a_budget_that_does_not_fit_is_refused():
    with refused(ValueError, "batch_tokens", 3, 4):
        make_plan(([1], [1]), 3, 4)


@given(world_size=st.integers(1, 12), batches=st.integers(1, 8), rows=st.integers(1, 12))
def test_processes_share_a_step_without_loss_and_in_step(world_size, batches, rows):
    indices = np.split(np.arange(rows * batches), batches)
    step = Step(tuple(indices), items=0)
    shares = [share(step, rank, world_size) for rank in range(world_size)]
    assert len({len(mine) for mine in shares}) == 1
    assert sorted(np.concatenate([batch for mine in shares for batch in mine])) == list(range(rows * batches))
    sizes = [sum(map(len, mine)) for mine in shares]
    assert max(sizes) - min(sizes) <= batches % world_size
    owners = {row: number for number, batch in enumerate(indices) for row in batch}
    assert all(len({owners[row] for row in batch}) <= 1 for mine in shares for batch in mine)
    if world_size == 1:
        assert [batch.tolist() for batch in shares[0]] == [batch.tolist() for batch in indices]


def test_too_few_batches_are_split_only_as_far_as_processes_need():
    step = Step(tuple(np.split(np.arange(72), 6)), items=0)
    # Two groups of four processes, with three batches each.
    assert {tuple(map(len, share(step, rank, 8))) for rank in range(8)} == {(3, 3, 3)}
