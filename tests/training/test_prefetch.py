"""Batches made in the background are those that the plan says, in its order, from any place on."""

from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from refusals import refused

from vanilla_transformer.data.batching import StepPlan, share
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


def test_a_step_of_few_tokens_is_one_batch(corpus, plan):
    steps = plan.epoch(0)
    together = [np.concatenate(step.batches) for step in steps]
    tokens = [plan.real_and_all_tokens(rows)[1] for rows in together]
    assert min(tokens) < max(tokens)
    found = islice(steps_from(corpus, plan, Progress(), joined_tokens=max(tokens) - 1), len(steps))
    for fed, step, rows, size in zip(found, steps, together, tokens, strict=True):
        pieces = step.batches if size == max(tokens) else [rows]
        assert_same(fed, [COLLATE(corpus.rows(piece), None) for piece in pieces])


@pytest.mark.parametrize("done", [3, "all"])
def test_steps_begin_at_any_position_of_an_epoch(corpus, plan, done):
    steps = plan.epoch(1)
    done = len(steps) if done == "all" else done
    expected = [*steps[done:], plan.epoch(2)[0]]
    found = list(islice(steps_from(corpus, plan, Progress(epoch=1, step_in_epoch=done)), len(expected)))
    assert [fed.epoch for fed in found] == [1] * (len(steps) - done) + [2]
    for fed, step in zip(found, expected, strict=True):
        assert_same(fed, [COLLATE(corpus.rows(rows), None) for rows in step.batches])


def test_an_error_comes_in_the_place_of_its_item():
    def items():
        yield 1
        raise OSError("the disk is gone")

    ready = prefetch(items(), ahead=5)
    assert next(ready) == 1
    with refused(OSError, "the disk is gone"):
        next(ready)
