"""Batches made in the background are those that the plan says, in its order, from any place on."""

import threading
from contextlib import closing
from functools import partial
from itertools import count, islice

import numpy as np
import pytest
import torch
from refusals import refused

from vanilla_transformer.data.batching import Step, StepPlan, share
from vanilla_transformer.data.token_corpus import PreparedCorpus
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training.checkpoints import Progress
from vanilla_transformer.training.prefetch import local_steps, prefetch

COLLATE = partial(get_task("translation").collate, config=VanillaTransformerConfig())


class Corpus(PreparedCorpus):
    """Forty pairs of one to nine tokens; a pair's tokens are its number."""

    def __init__(self):
        random = np.random.default_rng(0)
        sources, targets = random.integers(1, 10, (2, 40), dtype=np.int32)
        self.lengths = {"source": sources, "target": targets}

    def rows(self, indices):
        return {
            name: [np.full(side[index], index + 3) for index in indices.tolist()]
            for name, side in self.lengths.items()
        }


@pytest.fixture
def corpus():
    return Corpus()


@pytest.fixture
def plan(corpus):
    return StepPlan(*corpus.lengths.values(), batch_tokens=60, batches_per_step=3, seed=1)


def steps_from(corpus, plan, progress, **among):
    return local_steps(lambda rows: plan, corpus, COLLATE, progress, **among)


def assert_same(fed, batches):
    for found, expected in zip(fed.batches, batches, strict=True):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_gets_its_batches_of_every_step_over_epochs(corpus, plan, rank):
    steps = [(epoch, step) for epoch in range(2) for step in plan.epoch(epoch)]
    found = list(islice(steps_from(corpus, plan, Progress(), rank=rank, processes=2), len(steps)))
    for number, (fed, (epoch, step)) in enumerate(zip(found, steps, strict=True)):
        first = len(plan.epoch(0)) if epoch else 0
        assert (fed.epoch, fed.items) == (epoch, step.items)
        assert fed.epoch_done == (number - first + 1) / len(plan.epoch(epoch))
        assert_same(fed, [COLLATE(corpus.rows(rows), None) for rows in share(step, rank, 2)])


@pytest.mark.parametrize("done", [3, "all"])
def test_steps_begin_at_any_position_of_an_epoch(corpus, plan, done):
    steps = plan.epoch(1)
    done = len(steps) if done == "all" else done
    expected = [*steps[done:], plan.epoch(2)[0]]
    found = list(islice(steps_from(corpus, plan, Progress(epoch=1, step_in_epoch=done)), len(expected)))
    assert [fed.epoch for fed in found] == [1] * (len(steps) - done) + [2]
    for fed, step in zip(found, expected, strict=True):
        assert_same(fed, [COLLATE(corpus.rows(rows), None) for rows in step.batches])


def test_steps_count_their_tokens_with_and_without_padding(corpus, plan):
    for fed, step in zip(local_steps(lambda rows: plan, corpus, COLLATE, Progress()), plan.epoch(0), strict=False):
        sides = [lengths[rows] for rows in step.batches for lengths in corpus.lengths.values()]
        assert (fed.real_tokens, fed.all_tokens) == (
            sum(map(sum, sides)),
            sum(len(side) * max(side) for side in sides),
        )


def test_an_epoch_is_let_go_before_the_next_is_planned(corpus):
    """The batches of an epoch are views of one array of all its pairs, so that one of them keeps all."""
    alive, at_planning = set(), []

    class Order(np.ndarray):
        def __array_finalize__(self, other):
            self.owner = getattr(other, "owner", None)

    class Owner:
        def __init__(self, epoch):
            alive.add(epoch)
            self.epoch = epoch

        def __del__(self):
            alive.discard(self.epoch)

    class Plan:
        seed = 1

        def real_and_all_tokens(self, batch):
            return len(batch), len(batch)

        def epoch(self, epoch):
            at_planning.append(set(alive))
            order = np.arange(40).view(Order)
            order.owner = Owner(epoch)
            return [Step((order[:20], order[20:]), 1)] * 2

    kept = list(islice(local_steps(lambda rows: Plan(), corpus, COLLATE, Progress()), 7))
    assert len(kept) == 7
    assert at_planning == [set()] * 4


def test_prefetching_keeps_items_and_their_order():
    assert list(prefetch(iter(range(100)), ahead=3)) == list(range(100))


def test_prefetching_makes_no_more_items_ahead_than_asked():
    made, enough = [], threading.Event()

    def items():
        for number in count():
            made.append(number)
            if number == 3:
                enough.set()
            yield number

    with closing(prefetch(items(), ahead=2)) as ready:
        assert next(ready) == 0
        # One is taken, two wait, and a fourth has no place yet.
        assert enough.wait(30)
        assert made == [0, 1, 2, 3]


def test_an_error_comes_in_the_place_of_its_item():
    def items():
        yield 1
        raise OSError("the disk is gone")

    ready = prefetch(items(), ahead=5)
    assert next(ready) == 1
    with refused(OSError, "the disk is gone"):
        next(ready)


def test_closing_ends_the_thread_though_there_is_more():
    with closing(prefetch(count(), ahead=2)) as ready:
        assert next(ready) == 0
        thread = next(thread for thread in threading.enumerate() if thread.name == "batches")
    thread.join(30)
    assert not thread.is_alive()
