"""The recipes of the package: each can be followed, and those of the paper train as sections 5 and 6.1 have it."""

import json
import random
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused
from small_models import SIZES, write_reversed

from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli.program import main
from vanilla_transformer.cli.train import Train
from vanilla_transformer.data.batching import StepPlan, share
from vanilla_transformer.errors import SettingError
from vanilla_transformer.evaluation import check_names
from vanilla_transformer.inspection.sizes import count_parameters
from vanilla_transformer.recipe.reading import load_recipe, shipped_recipes
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training.choices import CorpusFacts, DeviceFacts, choose_vocab_size, resolve
from vanilla_transformer.training.run import train

TASK = get_task("translation")

WMT = ["wmt14-en-de-base", "wmt14-en-de-big", "wmt14-en-fr-base", "wmt14-en-fr-big"]
# A GPU of 8 GB and one of 80 GB, alone and together with others.
DEVICES = [
    DeviceFacts("cuda", cores=8, memory=memory * 10**9, bfloat16=True, processes=processes)
    for memory in (8, 80)
    for processes in (1, 2, 3, 8, 16)
]
# What the comment of a recipe tells a user: a command that may go on in the next line.
COMMAND = re.compile(
    r"^#   (?:vanilla-transformer|accelerate launch -m vanilla_transformer) (train(?:.*\\\n#)*.*)$", re.M
)


def resolved(name, device, pairs=4_500_000):
    """A recipe with all that it leaves open chosen for the device, on texts of the length of WMT's."""
    recipe = load_recipe(name).with_options(output="model")
    task = get_task(recipe.data.task)
    vocab_size, _ = choose_vocab_size(recipe, task, pairs)
    return resolve(recipe, task, CorpusFacts(pairs, (28 * pairs, 30 * pairs), vocab_size), device).recipe


def lengths_of_wmt(count=60_000):
    """Lengths like those of WMT's sentences in sub-words: half below 24, one in twenty above 70, 30 on average."""
    draw = np.random.default_rng(0)
    source = np.exp(draw.normal(3.15, 0.68, count))
    target = source * np.exp(draw.normal(0.03, 0.2, count))
    return tuple(1 + side.clip(1, 255).astype(np.int32) for side in (source, target))


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_every_recipe_can_be_followed_on_any_device(name):
    given = load_recipe(name)
    task = get_task(given.data.task)
    check_names(given.evaluation.metrics or (), task.metrics)
    for device in (*DEVICES, DeviceFacts("cpu", cores=2, memory=16 * 10**9, bfloat16=False)):
        recipe = resolved(name, replace(device, processes=given.run.processes or device.processes))
        assert recipe.optimization.max_steps is not None and recipe.optimization.batches_per_step is not None
        task.config(recipe)
        kept = {field: value for field, value in given.options.items() if value not in (None, "auto")}
        assert {field: recipe[field] for field in kept} == kept
        assert recipe.run.average_checkpoints * recipe.run.save_steps <= recipe.optimization.max_steps


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_the_command_of_each_recipe_runs_on_its_text(name, monkeypatch):
    text = shipped_recipes()[name].read_text(encoding="utf-8")
    commands = []
    monkeypatch.setattr(Train, "run", lambda command: commands.append(command))
    assert main(shlex.split(COMMAND.search(text)[1].replace("\\\n#", ""))) == 0
    assert commands[0].name == name
    recipe = commands[0].recipe
    assert recipe.data.train and recipe.data.dev and recipe.run.output
    assert recipe.data.test or "it has no test" in text


@pytest.mark.parametrize("name", sorted(name for name in shipped_recipes() if not load_recipe(name).data.train))
def test_a_recipe_without_text_says_where_to_read_of_it(name):
    with refused(SettingError, "--train", f"{name}.yaml"):
        Train.from_words([name]).run()


@pytest.mark.parametrize("name", WMT)
def test_the_papers_numbers_are_the_recipes(name):
    recipe = resolved(name, DEVICES[-1])
    big, french = name.endswith("big"), "en-fr" in name
    paper = {
        "tokenizer_algorithm": "wordpiece" if french else "bpe",
        "vocab_size": 32_000 if french else 37_000,
        "max_steps": 300_000 if big else 100_000,
        "average_checkpoints": 20 if big else 5,
        "dropout": 0.3 if big and not french else 0.1,
        "label_smoothing": 0.1,
        "warmup_steps": 4_000,
        "learning_rate_scale": 1.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-9,
    }
    assert {setting: recipe[setting] for setting in paper} == paper
    with torch.device("meta"):
        model = TASK.build(recipe)
    config, search = model.config, model.generation_config
    assert (search.num_beams, search.length_penalty, search.length_penalty_type) == (4, 0.6, "google")
    sizes = (config.d_model, config.d_ff, config.num_heads, config.d_k, config.encoder_layers, config.decoder_layers)
    assert sizes == ((1024, 4096, 16, 64, 6, 6) if big else (512, 2048, 8, 64, 6, 6))
    # Ten minutes between checkpoints: of base, 12 hours for all steps; of big, three and a half days.
    minutes = recipe.run.save_steps / recipe.optimization.max_steps * (3.5 * 24 if big else 12) * 60
    assert minutes == pytest.approx(10, rel=0.15)
    assert recipe.optimization.max_steps % recipe.run.save_steps == 0


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: f"{device.processes}x{device.memory // 10**9}GB")
def test_a_step_has_25000_tokens_a_side_on_any_number_of_devices(device):
    recipe = resolved("wmt14-en-de-base", device).optimization
    source, target = lengths_of_wmt()
    budget = {name: getattr(recipe, name) for name in ("batch_tokens", "batches_per_step", "seed")}
    steps = StepPlan(source, target, items=TASK.items, **budget).epoch(0)[:-1]
    assert np.mean([step.items for step in steps]) == pytest.approx(25_000, rel=0.1)
    assert np.mean([source[np.concatenate(step.batches)].sum() for step in steps]) == pytest.approx(25_000, rel=0.1)
    # No device waits for another: each has equally many whole batches.
    assert recipe.batches_per_step % device.processes == 0
    for rank in range(device.processes):
        assert len(share(steps[0], rank, device.processes)) == recipe.batches_per_step // device.processes


def test_a_batch_of_the_big_model_fits_into_a_small_device():
    recipe = resolved("wmt14-en-de-big", DeviceFacts("cuda", 8, 8 * 10**9, True))
    config, length = TASK.config(recipe), 50
    tokens = recipe.optimization.batch_tokens // recipe.optimization.batches_per_step
    # Activations in half precision as Korthikanti et al. (2022) count them; cross-attention is one more attention.
    attention = 13 * config.d_model + 5 * config.num_heads * length
    encoder = attention + 21 * config.d_model
    activations = tokens * (config.encoder_layers * encoder + config.decoder_layers * (encoder + attention))
    logits = 4 * tokens * config.vocab_size
    states = 4 * 4 * count_parameters(config)["total"]  # Weights, gradients and Adam's two moments, in float32.
    assert states + activations + 2 * logits < 0.8 * 8e9


def test_the_papers_recipe_trains_averages_and_scores_as_the_paper_does(tmp_path):
    given = load_recipe("wmt14-en-de-base")
    files = {part: write_reversed(tmp_path, part, 300, seed) for seed, part in enumerate(("train", "dev", "test"))}
    steps = given.run.average_checkpoints + 2
    sizes = {"vocab_size": 280, "batch_tokens": 600, "batches_per_step": 2, "max_steps": steps, "save_steps": 1}
    recipe = given.with_options(
        **files, **SIZES, **sizes, eval_steps=steps, log_steps=1, output=str(tmp_path / "model")
    )
    directory = train(recipe).directory

    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    rates = {record["step"]: record["learning_rate"] for record in records if "learning_rate" in record}
    assert rates == pytest.approx({step: 16**-0.5 * step * 4_000**-1.5 for step in range(1, steps + 1)})
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["averaged_steps"] == list(range(3, steps + 1))
    assert [score["name"] for score in summary["scores"]["test"]] == list(given.evaluation.metrics)
    model = VanillaTransformerForConditionalGeneration.from_pretrained(directory)
    assert (model.config.dropout, model.config.label_smoothing) == (0.1, 0.1)
    assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (4, 0.6)


def test_the_model_for_wu2021_has_no_more_parameters_than_theirs():
    # 9,968 entries are in their training text, the 256 bytes and 4 special tokens among them.
    recipe = load_recipe("multi30k-en-de-wu2021").with_options(vocab_size=9_968)
    assert count_parameters(TASK.config(recipe))["total"] < 2_700_000


def test_text_that_is_split_already_brings_its_vocabulary(tmp_path):
    pieces = ["ein", "klein@@", "es", "hau@@", "s", "gr@@", "ün"]
    draw = random.Random(0)
    for name in ("text.en", "text.de"):
        lines = (" ".join(draw.choices(pieces, k=draw.randint(1, 8))) for _ in range(100))
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    files = (str(tmp_path / "text.en"), str(tmp_path / "text.de"))
    sizes = {**SIZES, "max_steps": 2, "save_steps": 1, "eval_steps": 2, "batch_tokens": 200}
    recipe = load_recipe("multi30k-en-de-wu2021")
    directory = train(
        recipe.with_options(train=files, dev=files, examples=(), output=str(tmp_path / "model"), **sizes)
    )
    assert load_recipe(directory / "recipe.yaml").tokenizer.vocab_size == 260 + len(pieces)
    assert "only 267 entries" in Path(directory, "train.log").read_text()
