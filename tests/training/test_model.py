"""What a run trains: a model that starts from a saved one (`train --from`), and its learning rate."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from small_models import SIZES, figures, small_recipe, write_reversed
from transformers import AutoModelForSeq2SeqLM

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.cli import main
from vanilla_transformer.errors import RunError, SettingError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.registration import register_family
from vanilla_transformer.tasks import get_task
from vanilla_transformer.tasks.translation import Translation
from vanilla_transformer.tokenizer import train_tokenizer
from vanilla_transformer.training.model import build_model, recipe_of_start
from vanilla_transformer.training.optimizer import paper_learning_rate
from vanilla_transformer.training.run import train

TRANSLATION = get_task("translation")


@pytest.fixture(scope="module")
def further(tmp_path_factory) -> Recipe:
    """A recipe that trains a run's model further and leaves open all that the model decides."""
    directory = tmp_path_factory.mktemp("pairs")
    recipe = small_recipe(directory, dropout=0.2, output=str(directory / "general"))
    left = dict.fromkeys(("preset", "vocab_size", *SIZES, "dropout"))
    return recipe.with_options(from_model=str(train(recipe)), warmup_steps=None, **left)


def test_a_run_starts_from_the_weights_and_the_tokenizer_of_a_model(further, tmp_path):
    model, origin = build_model(recipe_of_start(further, TRANSLATION), TRANSLATION)
    source = VanillaTransformerForConditionalGeneration.from_pretrained(further.start.from_model).state_dict()
    assert all(torch.equal(weight, source[name]) for name, weight in model.state_dict().items())
    count = f"{model.num_parameters():,}"
    assert f"Starts from {further.start.from_model}: {count} of {count} parameters are taken; none is new." == origin
    directory = train(further.with_options(output=str(tmp_path / "model"), learning_rate=1e-9, num_beams=1))
    assert VanillaTransformerForConditionalGeneration.from_pretrained(directory).generation_config.num_beams == 1
    assert origin in (directory / "train.log").read_text()
    for name, weight in load_file(directory / "model.safetensors").items():
        torch.testing.assert_close(weight, source[name], atol=1e-6, rtol=0)
    kept = load_recipe(directory / "recipe.yaml")
    assert kept.start.from_model == kept.tokenizer.tokenizer == further.start.from_model
    sizes = kept.model.d_model, kept.model.dropout, kept.tokenizer.vocab_size
    assert (*sizes, kept.optimization.warmup_steps) == (16, 0.2, 275, 1)
    files = [(place / "tokenizer.json").read_text() for place in (directory, tmp_path / further.start.from_model)]
    assert files[0] == files[1]
    origin = f"trained from {Path(further.start.from_model).name} by vanilla_transformer"
    assert origin in (directory / "README.md").read_text()


class ScaledConfig(VanillaTransformerConfig):
    """A configuration that a program derives from ours."""

    model_type = "scaled_transformer"
    scale: float = 1.0


class ScaledTransformer(VanillaTransformerForConditionalGeneration):
    config_class = ScaledConfig
    hub_classes: dict[str, str] = {}
    _auto_class = None


class ScaledTranslation(Translation):
    name = "scaled-translation"
    config_class = ScaledConfig


def test_a_run_keeps_the_fields_of_a_starting_model_that_a_program_has_registered(further, tmp_path):
    register_family(ScaledConfig, {AutoModelForSeq2SeqLM: ScaledTransformer})
    model = VanillaTransformerForConditionalGeneration.from_pretrained(further.start.from_model)
    config = ScaledConfig(**model.config.to_dict() | {"scale": 2.5, "model_type": "scaled_transformer"})
    ScaledTransformer(config).save_pretrained(tmp_path)
    VanillaTransformerTokenizer.from_pretrained(further.start.from_model).save_pretrained(tmp_path)
    task = ScaledTranslation()
    mine = further.with_options(from_model=str(tmp_path))
    assert build_model(recipe_of_start(mine, task), task)[0].config.scale == 2.5


@pytest.mark.parametrize("has_settings", [True, False])
def test_a_run_resumes_and_is_averaged_without_its_starting_model(further, train_until, tmp_path, has_settings):
    start = tmp_path / "start"
    source = VanillaTransformerForConditionalGeneration.from_pretrained(further.start.from_model)
    source.config.activation_function = "gelu"
    source.generation_config.update(num_beams=2, no_repeat_ngram_size=3, max_new_tokens=9)
    source.save_pretrained(start)
    VanillaTransformerTokenizer.from_pretrained(further.start.from_model).save_pretrained(start)
    if not has_settings:
        (start / "generation_config.json").unlink()
    mine = further.with_options(from_model=str(start), max_length_beyond_source=8, metrics=("chrf",))
    undisturbed = train(mine, output=str(tmp_path / "undisturbed"))
    mine = mine.with_options(output=str(tmp_path / "model"))
    train_until(mine, 4)
    start.rename(tmp_path / "elsewhere")
    run = train(mine)
    with refused(RunError, "saved: d_model 16", "requested: d_model 32"):
        train(mine, d_model=32)
    assert main(["average", str(run), "--last", "1", "--output", str(tmp_path / "mean")]) == 0
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        assert (run / name).read_bytes() == (undisturbed / name).read_bytes()
        assert name == "model.safetensors" or (run / name).read_bytes() == (tmp_path / "mean" / name).read_bytes()
    assert load_file(tmp_path / "mean" / "model.safetensors").keys() == load_file(run / "model.safetensors").keys()


def test_a_limit_beyond_the_source_replaces_that_of_the_starting_model(further, tmp_path):
    model = VanillaTransformerForConditionalGeneration.from_pretrained(further.start.from_model)
    model.generation_config.max_new_tokens = 9
    model.save_pretrained(tmp_path)
    mine = further.with_options(from_model=str(tmp_path), max_length_beyond_source=3)
    settings = build_model(recipe_of_start(mine, TRANSLATION), TRANSLATION)[0].generation_config
    assert (settings.max_length_beyond_source, settings.max_new_tokens, settings.max_length) == (3, None, None)


def test_a_search_that_is_given_replaces_that_of_the_starting_model_even_if_it_is_the_papers(further, tmp_path):
    model = VanillaTransformerForConditionalGeneration.from_pretrained(further.start.from_model)
    model.generation_config.update(num_beams=2, length_penalty=1.0)
    model.save_pretrained(tmp_path)
    mine = Recipe.of(**further.options | {"from_model": str(tmp_path), "num_beams": 4})
    settings = build_model(recipe_of_start(mine, TRANSLATION), TRANSLATION)[0].generation_config
    assert (settings.num_beams, settings.length_penalty) == (4, 1.0)


@pytest.mark.parametrize(
    "setting",
    [
        "pass",
        'torch.set_float32_matmul_precision("medium")',
        'torch.backends.fp32_precision = "tf32"',
        'torch.backends.cuda.matmul.fp32_precision = "tf32"',
        "torch.backends.cuda.matmul.allow_tf32 = True",
    ],
)
def test_training_rounds_no_operand_unless_it_may_and_leaves_the_programs_settings(setting):
    # A separate process, because torch remembers in which of the two ways it was set.
    check = f"""
import torch
from vanilla_transformer.training.optimizer import training_kernels

{setting}
backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul


def state():
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = None
    return [one.fp32_precision for one in backends], older


before = state()
for tf32, expected in ((False, ("ieee", "highest")), (True, ("tf32", "high"))):
    with training_kernels(tf32):
        assert state() == ([expected[0]] * 2, expected[1])
    assert state() == before
# What the program has set for all is not set for each: another choice for all still applies.
if torch.backends.fp32_precision == "tf32":
    torch.backends.fp32_precision = "ieee"
    assert state()[0] == ["ieee", "ieee"]
"""
    subprocess.run([sys.executable, "-c", check], check=True)


def test_fine_tuning_for_some_minutes_begins_in_epoch_0_and_its_directory_refuses_a_run_without_dev(
    further, tmp_path, monkeypatch
):
    monkeypatch.setattr("vanilla_transformer.training.loop.SECONDS_OF_MEASURING", 0.1)
    dev = write_reversed(tmp_path, "dev", 20, seed=1)
    mine = further.with_options(output=str(tmp_path / "model"), dev=dev, max_minutes=0.5, max_steps=2)
    first = figures(train(mine).directory)[0]
    assert (first["step"], first["epoch"]) == (0, 0)
    with refused(RunError, "requested: dev none"):
        train(mine.with_options(dev=()))


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"vocab_size": 300}, "vocab_size is 300 275 general"),
        ({"d_model": 32}, "d_model is 32 16 general --d-model 16"),
        ({"tokenizer": "another"}, "general tokenizer"),
        ({"tokenizer_algorithm": "bpe"}, "tokenizer_algorithm"),
        ({"architecture": "recurrent"}, "architecture"),
    ],
)
def test_options_that_contradict_the_starting_model_are_refused(further, asked, named):
    with refused(SettingError, *named.split()):
        recipe_of_start(further.with_options(**asked), TRANSLATION)


def test_a_classifier_takes_the_encoder_of_a_masked_language_model(tmp_path):
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "positional_encoding": "learned"}
    tokenizer = train_tokenizer(["the cat"] * 3, vocab_size=265, begins=True, mask_token=True)
    config = VanillaTransformerEncoderConfig(vocab_size=len(tokenizer), activation_function="gelu", **sizes)
    source = VanillaTransformerEncoderForMaskedLM(config)
    source.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    task = get_task("text-classification")
    mine = Recipe.of(task=task.name, from_model=str(tmp_path), labels=("bad", "good", "so-so"))
    with refused(SettingError, "1,024", "2,000"):
        recipe_of_start(mine.with_options(max_length=2000), task)
    model, origin = build_model(recipe_of_start(mine, task), task)
    assert model.config.activation_function == "gelu" and model.config.num_labels == 3
    for name, weight in source.model.state_dict().items():
        assert torch.equal(model.model.state_dict()[name], weight)
    assert origin is not None and "new: classifier.bias, classifier.weight" in origin
    model.save_pretrained(tmp_path)
    mine = mine.with_options(labels=("a", "b"))
    _, origin = build_model(recipe_of_start(mine, task), task)
    assert origin is not None and "new: classifier.bias, classifier.weight" in origin


def test_the_rate_rises_in_a_line_and_falls_with_the_root_of_the_step():
    peak = paper_learning_rate(4000, 512, 4000)
    assert peak == pytest.approx((512 * 4000) ** -0.5)
    assert paper_learning_rate(1000, 512, 4000) == pytest.approx(peak / 4)
    assert paper_learning_rate(16000, 512, 4000) == pytest.approx(peak / 2)
    assert max(paper_learning_rate(step, 512, 4000) for step in range(1, 9000)) == peak
