"""`train --from MODEL --lora-rank N`: small matrices learn, and the output is a model without them."""

import importlib.util
import random

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file

from vanilla_transformer import (
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.cli import main
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training.loop import train
from vanilla_transformer.training.saved_start import build_model, recipe_of_start

needs_peft = pytest.mark.skipif(not importlib.util.find_spec("peft"), reason="PEFT is not installed.")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Recipe:
    """A recipe that adapts a small trained model and leaves open all that the model decides."""
    directory, draw = tmp_path_factory.mktemp("pairs"), random.Random(0)
    paths = {}
    for name, number in (("train", 120), ("dev", 10)):
        paths[name] = (str(directory / f"{name}.en"), str(directory / f"{name}.de"))
        sentences = [[draw.choice(["one", "two", "three", "four"]) for _ in range(4)] for _ in range(number)]
        for path, step in zip(paths[name], (1, -1), strict=True):
            (directory / path).write_text("".join(" ".join(sentence[::step]) + "\n" for sentence in sentences))
    settings = {"batch_tokens": 180, "batches_per_step": 2, "average_checkpoints": 2, "metrics": (), "eval_steps": 4}
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 270}
    start = Recipe.of(**paths, **settings, **sizes, max_steps=4, warmup_steps=2, output=str(directory / "general"))
    return Recipe.of(**paths, **settings, max_steps=8, save_steps=2, from_model=str(train(start)), lora_rank=2)


def completed(recipe):
    return recipe.extras["lora"].complete(recipe)


def weights(directory):
    return load_file(directory / "model.safetensors")


@needs_peft
def test_output_is_a_plain_model_with_only_the_targets_changed(recipe, tmp_path):
    mine = recipe.with_options(lora_targets=("q_proj", "w_1"), output=str(tmp_path / "model"))
    directory = train(mine)
    source, found = weights(tmp_path / recipe.start.model), weights(directory)
    assert found.keys() == source.keys()
    changed = {name for name in found if not torch.equal(found[name], source[name])}
    assert changed == {name for name in found if name.endswith((".q_proj.weight", ".w_1.weight"))}
    VanillaTransformerForConditionalGeneration.from_pretrained(directory)
    log = (directory / "train.log").read_text("utf-8")
    assert "LoRA of rank 2 on q_proj, w_1: 384 parameters are trained" in log
    assert "a learning rate of 0.0079 after the warm-up" in log  # Ten times (16 · 100,000)^-½.
    assert load_recipe(directory / "recipe.yaml").extras["lora"].rank == 2
    # The mean of the merged weights of the last checkpoints, not of their matrices.
    last = [mine.extras["lora"].merged(weights(directory / "checkpoints" / f"step-{step:08d}")) for step in (6, 8)]
    for name in changed:
        torch.testing.assert_close(found[name], (last[0][name] + last[1][name]) / 2)
    assert main(["average", str(directory), "--output", str(tmp_path / "again")]) == 0
    again = weights(tmp_path / "again")
    assert all(torch.equal(again[name], weight) for name, weight in found.items())


@needs_peft
def test_merged_weights_give_the_logits_of_the_adapted_model(recipe):
    translation = get_task("translation")
    mine = recipe_of_start(recipe.with_options(lora_alpha=3.0, lora_targets=("v_proj", "w_2")), translation)
    model, _ = build_model(mine, translation, mine.adapters.values())
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    plain, _ = build_model(mine, translation)
    before = plain.state_dict()
    ids = {"input_ids": torch.tensor([[5, 9, 7, 2]]), "labels": torch.tensor([[6, 3, 2]])}
    expected = model.eval()(**ids).logits
    assert not torch.allclose(plain.eval()(**ids).logits, expected, atol=1e-2)
    plain.load_state_dict(before | mine.extras["lora"].merged(dict(model.named_parameters())))
    torch.testing.assert_close(plain(**ids).logits, expected, atol=1e-5, rtol=0)


@needs_peft
def test_a_killed_run_goes_on_to_the_same_weights(recipe, tmp_path, train_until):
    undisturbed = train(recipe.with_options(output=str(tmp_path / "undisturbed")))
    mine = recipe.with_options(output=str(tmp_path / "model"))
    train_until(mine, 6)
    expected, found = weights(undisturbed), weights(train(mine))
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert "Going on from the checkpoint of step 4." in (tmp_path / "model" / "train.log").read_text("utf-8")


@needs_peft
def test_a_new_head_learns_beside_the_matrices(tmp_path):
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1}
    tokenizer = VanillaTransformerTokenizer.train(["the cat"] * 3, vocab_size=265, begins=True, mask_token=True)
    VanillaTransformerEncoderForMaskedLM(
        VanillaTransformerEncoderConfig(vocab_size=len(tokenizer), **sizes)
    ).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    task = get_task("text-classification")
    mine = Recipe.of(task=task.name, from_model=str(tmp_path), labels=("bad", "good"), lora_rank=1, max_length=256)
    model, _ = build_model(recipe_of_start(mine, task), task, mine.adapters.values())
    learned = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert {name for name in learned if "lora" not in name} == {"classifier.weight", "classifier.bias"}


@needs_peft
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"from_model": None}, "lora_rank --from"),
        ({"lora_rank": None, "lora_alpha": 4.0}, "lora_alpha LoRA lora_rank"),
        ({"lora_rank": None, "lora_targets": ("q_proj",)}, "lora_targets LoRA lora_rank"),
    ],
)
def test_settings_that_exclude_lora_are_refused(recipe, changes, named):
    completed(recipe)
    with refused(RecipeError, *named.split()):
        completed(recipe.with_options(**changes))


@needs_peft
def test_a_target_that_there_is_not_is_refused(recipe):
    translation = get_task("translation")
    mine = recipe_of_start(recipe.with_options(lora_targets=("query",)), translation)
    with refused(RecipeError, "query", "k_proj, out_proj, q_proj, v_proj, w_1, w_2"):
        build_model(mine, translation, mine.adapters.values())


def test_without_peft_the_package_to_install_is_named(recipe, missing):
    missing("peft")
    with refused(RecipeError, "pip install 'vanilla-transformer[lora]'"):
        completed(recipe)
