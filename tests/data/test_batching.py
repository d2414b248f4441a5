import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
    return StepPlan(*lengths, batch_tokens=batch_tokens, batches_per_step=batches_per_step, seed=seed)


def padding_share(plan, epoch):
    batches = [plan.real_and_all_tokens(batch) for batch in batches_of(plan.epoch(epoch))]
    real, padded = map(sum, zip(*batches, strict=True))
    return 1 - real / padded


def batches_of(steps):
    return [batch for step in steps for batch in step.batches]


def same(steps, others):
    pairs = zip(batches_of(steps), batches_of(others), strict=True)
    return len(steps) == len(others) and all(np.array_equal(one, other) for one, other in pairs)


@settings(deadline=None)
@given(
    lengths=lengths_of_pairs,
    batch_tokens=st.integers(4, 300),
    batches_per_step=st.integers(1, 4),
    epoch=st.integers(0, 9),
)
def test_an_epoch_has_each_pair_once_within_the_budget(lengths, batch_tokens, batches_per_step, epoch):
    sources, targets = np.array(lengths, dtype=np.int32).T
    plan = make_plan((sources, targets), batch_tokens, batches_per_step)
    steps = plan.epoch(epoch)
    batches = batches_of(steps)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    for batch in batches:
        longest = max(sources[batch].max(), targets[batch].max())
        assert len(batch) == 1 or len(batch) * longest <= batch_tokens // batches_per_step
    assert all(len(step.batches) == batches_per_step for step in steps[:-1])
    assert 1 <= len(steps[-1].batches) <= batches_per_step
    assert [step.items for step in steps] == [sum(targets[b].sum() for b in step.batches) for step in steps]


def test_a_pair_longer_than_the_budget_has_a_batch_of_its_own():
    plan = make_plan((np.array([5, 900, 5]), np.array([5, 7, 6])), batch_tokens=100, batches_per_step=1)
    assert [1] in [batch.tolist() for batch in batches_of(plan.epoch(0))]


def test_a_step_larger_than_an_epoch_takes_all_of_it_at_once():
    plan = make_plan(text_lengths(50), batch_tokens=10**18, batches_per_step=10**15)
    (step,) = plan.epoch(0)
    assert sorted(np.concatenate(step.batches)) == list(range(50))


def test_a_plan_is_the_same_wherever_it_is_made():
    lengths = text_lengths(5000)
    assert same(make_plan(lengths).epoch(3), make_plan(lengths).epoch(3))


def test_another_epoch_and_another_seed_give_another_order():
    plan = make_plan(text_lengths(5000))
    assert not same(plan.epoch(0), plan.epoch(1))
    assert not same(plan.epoch(0), make_plan(text_lengths(5000), seed=2).epoch(0))


def test_pairs_of_the_same_lengths_meet_others_in_each_epoch():
    plan = make_plan((np.full(4000, 10), np.full(4000, 12)), batch_tokens=1200, batches_per_step=1)
    mates = [next(set(batch.tolist()) for batch in batches_of(plan.epoch(epoch)) if 0 in batch) for epoch in range(2)]
    assert len(mates[0]) == len(mates[1]) == 100
    assert len(mates[0] & mates[1]) < 20


def test_long_and_short_pairs_are_spread_over_the_epoch():
    sources, targets = text_lengths(100_000)
    steps = make_plan((sources, targets)).epoch(0)
    means = [np.mean([sources[batch].mean() for batch in step.batches]) for step in steps]
    half = len(means) // 2
    assert np.mean(means[:half]) == pytest.approx(np.mean(means[half:]), rel=0.05)


def test_small_and_large_steps_are_spread_over_the_epoch():
    steps = make_plan(text_lengths(20_000), batches_per_step=1).epoch(0)
    tokens = np.array([step.items for step in steps])
    half = len(tokens) // 2
    assert tokens[:half].mean() == pytest.approx(tokens[half:].mean(), rel=0.05)


def test_leftover_pairs_of_the_last_step_are_not_always_short():
    sources, targets = text_lengths(20_000)
    plan = make_plan((sources, targets))
    leftovers = [np.concatenate(plan.epoch(epoch)[-1].batches) for epoch in range(10)]
    assert max(sources[pairs].mean() for pairs in leftovers) > sources.mean()


def test_hardly_anything_is_padding():
    assert padding_share(make_plan(text_lengths(100_000), 8192, 2), epoch=0) < 0.03


def test_padding_is_what_fills_the_batches():
    plan = make_plan((np.array([2, 4]), np.array([6, 6])), batch_tokens=12, batches_per_step=1)
    assert padding_share(plan, 0) == pytest.approx(2 / 20)


def test_steps_have_about_equally_many_target_tokens():
    steps = make_plan(text_lengths(60_000), 8192, 8).epoch(0)
    tokens = np.array([step.items for step in steps[:-1]])
    assert tokens.std() < 0.02 * tokens.mean()


def test_planning_takes_little_more_than_a_key_for_each_pair(monkeypatch):
    monkeypatch.setattr(batching, "BLOCK", 1 << 14)
    count = 500_000
    plan = make_plan(text_lengths(count), 25_000, 6)
    tracemalloc.start()
    steps = plan.epoch(0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert steps
    assert peak < 12 * count


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"batch_tokens": 3, "batches_per_step": 4}, "batch_tokens 3 4"),
        ({"batch_tokens": 0, "batches_per_step": 1}, "batch_tokens 0 1"),
        ({"batch_tokens": 9, "batches_per_step": 0}, "0 batches"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(arguments, named):
    with refused(ValueError, *named.split()):
        make_plan((np.array([1]), np.array([1])), **arguments)


def test_lengths_that_do_not_belong_together_are_refused():
    with refused(ValueError, "[2, 1]"):
        make_plan((np.array([1, 2]), np.array([1])))
    with refused(ValueError, "[0, 0]"):
        make_plan((np.array([]), np.array([])))


@pytest.mark.parametrize("world_size", [*range(1, 6), 8, 12])
@pytest.mark.parametrize("batches", range(1, 9))
@pytest.mark.parametrize("rows", [1, 3, 12])
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


@pytest.mark.parametrize(
    ("batches", "world_size", "pieces"),
    [
        (2, 4, [6]),  # Two processes a batch, and not four for the one and then for the other.
        (6, 4, [12, 6]),
        (6, 8, [3, 3, 3]),  # Two groups of four, with three batches each.
        (3, 8, [2, 2, 2]),
        (4, 12, [4]),
    ],
)
def test_too_few_batches_are_split_only_as_far_as_processes_need(batches, world_size, pieces):
    step = Step(tuple(np.split(np.arange(12 * batches), batches)), items=0)
    for rank in range(world_size):
        sizes = [len(batch) for batch in share(step, rank, world_size)]
        assert len(sizes) == len(pieces)
        assert all(abs(size - expected) <= 1 for size, expected in zip(sizes, pieces, strict=True))


def test_one_process_gets_the_step_as_it_is():
    step = Step((np.array([1, 2]), np.array([3])), items=0)
    assert [batch.tolist() for batch in share(step, 0, 1)] == [[1, 2], [3]]
