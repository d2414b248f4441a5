"""The batches of a run are those that the plan says, in its order, for each process, from any place on."""

from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch

from vanilla_transformer.data.batching import share
from vanilla_transformer.data.preparation import PreparedCorpus
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training.checkpoints import Progress
from vanilla_transformer.training.inputs import local_steps, make_plan

COLLATE = partial(get_task("translation").collate, config=VanillaTransformerConfig())
RECIPE = Recipe.of(batch_tokens=60, batches_per_step=3, seed=1)


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


CORPUS = Corpus()
PLAN = make_plan(CORPUS, RECIPE)


def assert_same(fed, pieces):
    for found, rows in zip(fed.batches, pieces, strict=True):
        expected = COLLATE(CORPUS.rows(rows), None)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_gets_its_batches_of_every_step_over_epochs(rank):
    steps = [(epoch, step) for epoch in range(2) for step in PLAN.epoch(epoch)]
    first = len(PLAN.epoch(0))
    found = islice(local_steps(RECIPE, CORPUS, COLLATE, Progress(), rank=rank, processes=2), len(steps))
    for number, (fed, (epoch, step)) in enumerate(zip(found, steps, strict=True)):
        assert (fed.epoch, fed.items) == (epoch, step.items)
        assert fed.epoch_done == (number - epoch * first + 1) / len(PLAN.epoch(epoch))
        assert_same(fed, share(step, rank, 2))


def test_a_step_of_few_tokens_is_one_batch():
    steps = PLAN.epoch(0)
    together = [np.concatenate(step.batches) for step in steps]
    tokens = [PLAN.real_and_all_tokens(rows)[1] for rows in together]
    assert min(tokens) < max(tokens)
    found = islice(local_steps(RECIPE, CORPUS, COLLATE, Progress(), joined_tokens=max(tokens) - 1), len(steps))
    for fed, step, rows, size in zip(found, steps, together, tokens, strict=True):
        assert_same(fed, step.batches if size == max(tokens) else [rows])


@pytest.mark.parametrize("done", [3, len(PLAN.epoch(1))])
def test_steps_begin_at_any_position_of_an_epoch(done):
    steps = PLAN.epoch(1)
    expected = [*steps[done:], PLAN.epoch(2)[0]]
    found = list(islice(local_steps(RECIPE, CORPUS, COLLATE, Progress(epoch=1, step_in_epoch=done)), len(expected)))
    assert [fed.epoch for fed in found] == [1] * (len(steps) - done) + [2]
    for fed, step in zip(found, expected, strict=True):
        assert_same(fed, step.batches)
