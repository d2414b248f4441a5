"""Word-level distillation: a teacher's probabilities kept on disk, and runs that learn from them."""

import json
import shutil
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from small_models import SIZES, write_reversed
from torch.nn.modules.module import register_module_forward_pre_hook

from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
)
from vanilla_transformer.checkpointing.store import Progress
from vanilla_transformer.cli import main
from vanilla_transformer.data.preparation import StoredCorpus
from vanilla_transformer.extras.synthetic.distilled_corpus import SoftTargets, SoftTargetsError
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training.inputs import gather_inputs
from vanilla_transformer.training.loop import train
from vanilla_transformer.training.prefetch import local_steps, make_plan
from vanilla_transformer.training.run_directory import OutputError, RunDirectory

TASK = get_task("translation")
FILES = ("ids.bin", "probabilities.bin", "soft-targets.json")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Recipe:
    directory = tmp_path_factory.mktemp("pairs")
    return Recipe.of(
        train=write_reversed(directory, "train", 50, seed=0),
        dev=write_reversed(directory, "dev", 6, seed=1),
        vocab_size=270,
        dropout=0.2,
        batch_tokens=180,
        batches_per_step=2,
        max_steps=12,
        warmup_steps=4,
        save_steps=2,
        eval_steps=6,
        average_checkpoints=2,
        metrics=(),
        output=str(directory / "teacher"),
        **SIZES,
    )


@pytest.fixture(scope="module")
def teacher(recipe) -> str:
    return str(train(recipe))


def made(*words) -> int:
    return main(["soft-targets", *map(str, words)])


def asked(recipe, teacher, output, *options):
    return [teacher, "--train", *recipe.data.train[0].parts, "--output", output, "--precision", "float32", *options]


@pytest.fixture(scope="module")
def soft(recipe, teacher, tmp_path_factory) -> str:
    output = tmp_path_factory.mktemp("soft") / "targets"
    assert made(*asked(recipe, teacher, output, "--top-k", 5)) == 0
    return str(output)


@pytest.fixture
def student(recipe, soft) -> Recipe:
    return recipe.with_options(vocab_size=None, distil_from=soft, distillation_weight=0.7)


def inputs_of(recipe, directory):
    run = RunDirectory(directory)
    run.path.mkdir(exist_ok=True)
    return gather_inputs(recipe.extras["distillation"].complete(recipe), run, lambda sentence: None)


def test_soft_targets_are_the_teachers_likeliest_tokens(recipe, teacher, soft):
    targets, corpus = SoftTargets(soft), StoredCorpus(Path(soft, "tokens", "train"))
    model = VanillaTransformerForConditionalGeneration.from_pretrained(teacher).eval()
    start = 0
    for row in range(len(corpus)):
        source, target = (torch.tensor(corpus.rows([row])[side][0].astype(int))[None] for side in TASK.columns)
        with torch.no_grad():
            values, ids = model(input_ids=source, labels=target).logits[0].softmax(-1).topk(5)
        end = start + target.shape[1]
        assert np.array_equal(targets.ids[start:end], ids.numpy())
        expected = (values / values.sum(-1, keepdim=True)).numpy()
        np.testing.assert_allclose(targets.probabilities[start:end], expected, atol=1e-3)
        start = end
    assert start == len(targets.ids) == targets.facts.target_tokens


def test_a_killed_teacher_goes_on_to_the_same_files(recipe, teacher, tmp_path, capsys):
    # More rows than are written at a time.
    many = []
    for path in map(Path, recipe.data.train[0].parts):
        many.append(tmp_path / path.name)
        many[-1].write_text("".join(islice(cycle(path.read_text().splitlines(True)), 2010)))
    recipe, whole = recipe.with_options(train=tuple(map(str, many))), tmp_path / "whole"
    assert made(*asked(recipe, teacher, whole, "--top-k", 5)) == 0
    words, calls = asked(recipe, teacher, tmp_path / "targets", "--top-k", 5), count()

    def called(model, *_):
        if isinstance(model, VanillaTransformerForConditionalGeneration) and next(calls) == last:
            (tmp_path / "targets" / "ids.bin").open("ab").write(b"half a row")
            raise KeyboardInterrupt

    handle = register_module_forward_pre_hook(called)
    try:
        last = -1
        assert made(*asked(recipe, teacher, tmp_path / "counted", "--top-k", 5)) == 0
        last = next(calls) - 1
        calls = count()
        assert made(*words) == 130
        with refused(SoftTargetsError, "not finished"):
            SoftTargets(tmp_path / "targets")
        last, calls = -1, count()
        assert made(*words) == made(*words) == 0
        assert next(calls) == 1  # The first rows were done.
    finally:
        handle.remove()
    for name in FILES:
        assert (tmp_path / "targets" / name).read_bytes() == (whole / name).read_bytes(), name
    capsys.readouterr()
    assert made(*asked(recipe, teacher, whole, "--top-k", 4)) == 1
    assert "holds the soft targets of another top k: name another directory" in capsys.readouterr().err


def test_several_teachers_are_an_ensemble(recipe, teacher, tmp_path):
    shutil.copytree(teacher, tmp_path / "other")
    model = VanillaTransformerForConditionalGeneration.from_pretrained(teacher)
    torch.nn.init.normal_(model.model.shared.weight, std=0.3)
    model.save_pretrained(tmp_path / "other")
    words = asked(recipe, teacher, tmp_path / "targets", "--top-k", 3)
    assert made(words[0], tmp_path / "other", *words[1:]) == 0
    targets, corpus = SoftTargets(tmp_path / "targets"), StoredCorpus(tmp_path / "targets" / "tokens" / "train")
    source, target = (torch.tensor(corpus.rows([0])[side][0].astype(int))[None] for side in TASK.columns)
    members = [
        VanillaTransformerForConditionalGeneration.from_pretrained(one).eval() for one in (teacher, tmp_path / "other")
    ]
    with torch.no_grad():
        mean = sum(one(input_ids=source, labels=target).logits[0].softmax(-1) for one in members) / 2
    assert np.array_equal(targets.ids[: target.shape[1]], mean.topk(3).indices.numpy())


def test_a_copy_of_the_teacher_has_no_gradient(recipe, teacher, tmp_path):
    """With all types kept and nothing of the text, the gradient of the teacher itself is zero."""
    assert made(*asked(recipe, teacher, tmp_path / "all", "--top-k", 270)) == 0
    mine = recipe.with_options(vocab_size=None, distil_from=str(tmp_path / "all"), distillation_weight=1.0)
    corpus = inputs_of(mine, tmp_path / "run").train
    model = VanillaTransformerForConditionalGeneration.from_pretrained(teacher).train()
    model.config.dropout = 0.0
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout) or hasattr(module, "p"):
            module.p = 0.0
    norms = []
    for rows in (corpus.rows(range(8)), {name: corpus.rows(range(8))[name] for name in TASK.columns}):
        model.zero_grad()
        model(**TASK.collate(rows, None, model.config), skip_logits=True).loss.backward()
        norms.append(max(float(weight.grad.abs().max()) for weight in model.parameters()))
    assert norms[0] < 0.01 * norms[1]


def test_a_killed_run_goes_on_to_the_same_weights(student, tmp_path, train_until):
    undisturbed = train(student.with_options(output=str(tmp_path / "undisturbed")))
    mine = student.with_options(output=str(tmp_path / "model"))
    train_until(mine, 8)
    with refused(OutputError, "distillation_weight"):
        train(mine.with_options(distillation_weight=0.6))
    expected, found = (load_file(one / "model.safetensors") for one in (undisturbed, train(mine)))
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert "Distillation: 70% of the loss comes from the teacher's 5 likeliest tokens in" in (
        undisturbed / "train.log"
    ).read_text("utf-8")
    alone = train(
        student.with_options(
            distil_from=None,
            distillation_weight=0.5,
            tokenizer=student["distil_from"],
            output=str(tmp_path / "alone"),
        )
    )
    assert not torch.equal(
        load_file(alone / "model.safetensors")["model.shared.weight"], expected["model.shared.weight"]
    )


def test_soft_targets_that_have_changed_are_not_gone_on_with(student, soft, tmp_path):
    shutil.copytree(soft, tmp_path / "soft")
    mine = student.with_options(distil_from=str(tmp_path / "soft"), output=str(tmp_path / "model"))
    train(mine.with_options(max_steps=4))
    facts = json.loads((tmp_path / "soft" / "soft-targets.json").read_text())
    (tmp_path / "soft" / "soft-targets.json").write_text(json.dumps({**facts, "contents": "another"}))
    with refused(OutputError, "train", "soft", "changed"):
        train(mine)


def test_processes_share_the_steps_that_one_would_make(student, tmp_path):
    collate = partial(TASK.collate, config=VanillaTransformerConfig())
    alone, first, second = (inputs_of(student, tmp_path / "run").train for _ in range(3))
    plan = partial(make_plan, recipe=student.with_options(output="model", preset="tiny", precision="float32"))

    def steps(corpus, rank, processes):
        return islice(local_steps(plan, corpus, collate, Progress(), rank=rank, processes=processes), 6)

    def labelled(*parts):
        """Each target token that counts, with its soft targets."""
        return sorted(
            (label, ids, [round(weight, 6) for weight in weights])
            for part in parts
            for batch in part.batches
            if "soft_target_ids" in batch
            for label, ids, weights in zip(
                *(batch[name].flatten(0, 1).tolist() for name in ("labels", "soft_target_ids", "soft_target_weights")),
                strict=True,
            )
            if label != -100
        )

    for whole, *halves in zip(steps(alone, 0, 1), steps(first, 0, 2), steps(second, 1, 2), strict=True):
        found = labelled(whole)
        assert len(found) == whole.items and found == labelled(*halves)
        assert all(sum(weights) == pytest.approx(0.7, abs=1e-5) for _, _, weights in found)


def test_a_mixture_has_the_soft_targets_of_its_rows_in_each_epoch(recipe, teacher, tmp_path):
    other = write_reversed(tmp_path, "other", 12, seed=7)
    words = [*recipe.data.train[0].parts, "+", *other]
    assert made(teacher, "--train", *words, "--output", tmp_path / "soft", "--precision", "float32") == 0
    weighted = (*recipe.data.train[0].parts, "weight=0.6", "+", *other, "weight=0.4")
    mine = recipe.with_options(train=weighted, vocab_size=None, distil_from=str(tmp_path / "soft"))
    corpus = inputs_of(mine, tmp_path / "run").train
    model = VanillaTransformerForConditionalGeneration.from_pretrained(teacher).eval()
    for epoch in (0, 1):
        [part] = corpus.epoch_parts(epoch)
        assert len(part.corpus) > 62
        rows = part.corpus.rows(np.arange(len(part.corpus)))
        for row in (0, 30, 55, 70, len(part.corpus) - 1):
            source, target = (torch.tensor(rows[side][row].astype(int))[None] for side in TASK.columns)
            with torch.no_grad():
                expected = model(input_ids=source, labels=target).logits[0].topk(8).indices
            assert np.array_equal(rows["soft_target_ids"][row], expected.numpy())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"bpe_dropout": 0.1},
            "bpe_dropout teacher",
        ),
        ({"distil_from": None}, "distillation_weight distil_from"),
        ({"distillation_weight": 0.0}, "distillation_weight 0.0"),
        ({"distillation_weight": 1.5}, "distillation_weight 1.5"),
        ({"train": "prepared:corpus"}, "prepared corpus"),
        ({"task": "text-classification"}, "distil_from text-classification"),
    ],
)
def test_wrong_distillation_is_refused_before_reading(student, changes, named):
    with refused(RecipeError, *named.split()):
        student.with_options(**changes).extras["distillation"].complete(student.with_options(**changes))


def test_recurrent_students_learn_from_soft_targets_too():
    torch.manual_seed(0)
    config = RecurrentEncoderDecoderConfig(vocab_size=30, d_model=16, num_layers=1, dropout=0.0)
    model = RecurrentEncoderDecoderForConditionalGeneration(config)
    given = {"input_ids": torch.tensor([[5, 6, 2]]), "labels": torch.tensor([[7, 8, 2]])}
    soft = {"soft_target_ids": torch.tensor([[[9, 10]] * 3]), "soft_target_weights": torch.full((1, 3, 2), 0.25)}
    found = model(**given, **soft)
    assert torch.allclose(model(**given, **soft, skip_logits=True).loss, found.loss)
    assert not torch.allclose(model(**given).loss, found.loss)
    with refused(ValueError, "labels", "shape"):
        model(**given, soft_target_ids=soft["soft_target_ids"])


def test_soft_targets_of_something_else_are_refused(student, recipe, soft, tmp_path):
    other = write_reversed(tmp_path, "other", 50, seed=3)
    train(recipe.with_options(vocab_size=266, max_steps=1, output=str(tmp_path / "tokenizer")))
    for number, (changes, named) in enumerate(
        (
            ({"train": other}, "another text"),
            ({"max_length": 100}, "max_length 256 100"),
            ({"tokenizer": str(tmp_path / "tokenizer")}, "tokenizer"),
            ({"distil_from": str(tmp_path)}, "soft targets"),
        )
    ):
        with refused(SoftTargetsError, *named.split()):
            inputs_of(student.with_options(**changes), tmp_path / f"run{number}")
    shutil.copytree(soft, tmp_path / "cut")
    (tmp_path / "cut" / "ids.bin").open("ab").write(b"more")
    with refused(SoftTargetsError, "ids.bin", "soft-targets.json"):
        SoftTargets(tmp_path / "cut")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top-k", 0], "--top-k must be at least 1"),
        (["--top-k", 300], "top_k must be at least 1 and at most 270, the size of the vocabulary, not 300"),
        (["--precision", "bfloat16", "--device", "nowhere"], "--device nowhere"),
    ],
)
def test_soft_targets_that_cannot_be_made_are_refused(recipe, teacher, tmp_path, options, message, capsys):
    assert made(*asked(recipe, teacher, tmp_path / "out", *options)) in (1, 2)
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in said


def test_a_directory_of_something_else_is_left_alone(recipe, teacher, tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    assert made(*asked(recipe, teacher, tmp_path)) == 2
    assert "is not empty: name another directory" in capsys.readouterr().err
