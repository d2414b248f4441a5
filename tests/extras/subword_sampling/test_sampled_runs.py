"""Runs with sub-word sampling: the same from any checkpoint and on any number of processes, and never on dev."""

import json
from functools import partial
from itertools import islice

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from small_models import SIZES, write_reversed

from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.extras.subword_sampling.sampled_corpus import SampledCorpus
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training.checkpoints import Progress
from vanilla_transformer.training.inputs import gather_inputs
from vanilla_transformer.training.loop import train
from vanilla_transformer.training.prefetch import local_steps, make_plan
from vanilla_transformer.training.run_directory import OutputError, RunDirectory

TASK = get_task("translation")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Recipe:
    directory, words = tmp_path_factory.mktemp("pairs"), ["walking", "walked", "talker", "talking", "stalked"]
    return Recipe.of(
        train=write_reversed(directory, "train", 60, 0, words, longest=4),
        dev=write_reversed(directory, "dev", 6, 1, words, longest=4),
        **SIZES,
        vocab_size=275,
        bpe_dropout=0.3,
        dropout=0.2,
        batch_tokens=180,
        batches_per_step=2,
        max_steps=12,
        warmup_steps=4,
        save_steps=2,
        eval_steps=4,
        average_checkpoints=2,
        metrics=(),
    )


def weights(directory):
    return load_file(directory / "model.safetensors")


def test_a_killed_run_goes_on_to_the_same_weights_in_a_later_epoch(recipe, tmp_path, train_until):
    undisturbed = train(recipe.with_options(output=str(tmp_path / "undisturbed")))
    mine = recipe.with_options(output=str(tmp_path / "model"))
    train_until(mine, 10)
    assert json.loads((tmp_path / "model/checkpoints/step-00000008/progress.json").read_text())["epoch"] >= 1
    expected, found = weights(undisturbed), weights(train(mine))
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert "Sub-word sampling: bpe_dropout 0.3 on source and target; the first epoch has " in (
        undisturbed / "train.log"
    ).read_text("utf-8")
    with refused(OutputError, "bpe_dropout"):
        train(mine.with_options(bpe_dropout=0.2))


def check_sampling(recipe):
    recipe.extras["sampling"].complete(recipe)


def inputs_of(recipe, directory):
    run = RunDirectory(directory)
    run.path.mkdir(exist_ok=True)
    return gather_inputs(recipe, run, lambda sentence: None)


def test_processes_share_the_steps_that_one_would_make(recipe, tmp_path):
    collate = partial(TASK.collate, config=VanillaTransformerConfig())
    alone, first, second = (inputs_of(recipe, tmp_path / "run").train for _ in range(3))
    plan = partial(make_plan, recipe=recipe.with_options(output="model", preset="tiny", precision="float32"))

    def steps(corpus, rank, processes):
        return islice(local_steps(plan, corpus, collate, Progress(epoch=1), rank=rank, processes=processes), 8)

    found = zip(steps(alone, 0, 1), steps(first, 0, 2), steps(second, 1, 2), strict=True)
    for whole, *halves in found:
        assert [half.items for half in halves] == [whole.items] * 2
        rows = [sorted(row.tolist() for batch in one.batches for row in batch["labels"]) for one in (whole, *halves)]
        pairs = [[[token for token in row if token >= 0] for row in side] for side in rows]
        assert sorted(pairs[0]) == sorted([row for row in (*pairs[1], *pairs[2]) if row])


def test_without_dropout_nothing_is_sampled(recipe, tmp_path):
    off = recipe.with_options(bpe_dropout=0, tokenizer_algorithm="unigram")
    check_sampling(off)
    check_sampling(off.with_options(train="prepared:corpus"))
    assert not isinstance(inputs_of(off, tmp_path / "run").train, SampledCorpus)


def test_dev_is_not_sampled(recipe, tmp_path):
    sampled = inputs_of(recipe, tmp_path / "sampled")
    usual = inputs_of(recipe.with_options(bpe_dropout=None), tmp_path / "usual")
    assert sampled.dev.tokens == usual.dev.tokens and sampled.train.tokens != usual.train.tokens
    assert isinstance(sampled.train, SampledCorpus) and not isinstance(usual.train, SampledCorpus)
    one_side = inputs_of(recipe.with_options(sampled_sides="target"), tmp_path / "target").train
    assert one_side.token_counts[0] == usual.train.token_counts[0] != sampled.train.token_counts[0]


def test_a_unigram_model_is_sampled(recipe, tmp_path):
    mine = recipe.with_options(bpe_dropout=0, unigram_alpha=0.2, tokenizer_algorithm="unigram")
    assert isinstance(inputs_of(mine, tmp_path / "run").train, SampledCorpus)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"unigram_alpha": 0.2}, "bpe_dropout unigram_alpha"),
        ({"task": "language-modeling", "documents": "packed"}, "bpe_dropout blocks"),
        ({"task": "text-classification", "sampled_sides": "source"}, "text-classification pairs"),
        ({"train": "prepared:corpus"}, "prepared corpus --train"),
        ({"tokenizer_algorithm": "presplit"}, "bpe_dropout tokenizer_algorithm bpe presplit"),
        ({"bpe_dropout": None, "sampled_sides": "source"}, "sampled_sides bpe_dropout"),
    ],
)
def test_wrong_settings_of_sampling_are_refused(recipe, changes, named):
    check_sampling(recipe)
    with refused(RecipeError, *named.split()):
        check_sampling(recipe.with_options(**changes))
