"""Runs whose model writes its target from right to left."""

import random
from pathlib import Path

import pytest
from refusals import refused

from vanilla_transformer.cli import main
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task, task_for
from vanilla_transformer.training.loop import train
from vanilla_transformer.training.saved_start import recipe_of_start
from vanilla_transformer.translation import load_model, translate_lines

TRANSLATION = get_task("translation")
SIZES = {"d_model": 32, "d_ff": 64, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Recipe:
    """Numbers and the same in words: enough for so small a model to know some of them by heart."""
    directory, draw = tmp_path_factory.mktemp("pairs"), random.Random(0)
    words = ["zero", "one", "two", "three", "four"]
    rows = [draw.sample(range(5), 3) for _ in range(80)]
    (directory / "in").write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
    (directory / "out").write_text("".join(" ".join(words[one] for one in row) + "\n" for row in rows))
    return Recipe.of(
        train=(str(directory / "in"), str(directory / "out")),
        target_direction="right-to-left",
        vocab_size=280,
        dropout=0.0,
        label_smoothing=0.0,
        batch_tokens=400,
        batches_per_step=1,
        max_steps=120,
        warmup_steps=40,
        learning_rate=3e-3,
        save_steps=120,
        average_checkpoints=1,
        metrics=(),
        output=str(directory / "model"),
        **SIZES,
    )


@pytest.fixture(scope="module")
def model(recipe) -> str:
    return str(train(recipe))


def test_right_to_left_models_translate_in_reading_order(recipe, model):
    assert VanillaTransformerConfig.from_pretrained(model).target_direction == "right-to-left"
    lines, expected = (Path(recipe.data.train[0].parts[side]).read_text().splitlines() for side in (0, 1))
    found = [one.text for one in translate_lines(*load_model(model, device="cpu"), lines)]
    right = sum(one == other for one, other in zip(found, expected, strict=True))
    assert right > 0.8 * len(lines), found


def test_a_run_keeps_the_direction_of_its_starting_model(recipe, model, tmp_path):
    left = dict.fromkeys(("vocab_size", *SIZES, "dropout", "warmup_steps"))
    further = recipe.with_options(from_model=model, target_direction="left-to-right", **left)
    assert recipe_of_start(further, TRANSLATION).model.target_direction == "right-to-left"
    plain = train(recipe.with_options(target_direction="left-to-right", max_steps=1, output=str(tmp_path)))
    contrary = further.with_options(from_model=str(plain), target_direction="right-to-left")
    with refused(RecipeError, "target_direction", "right-to-left", "left-to-right"):
        recipe_of_start(contrary, TRANSLATION)


@pytest.mark.parametrize("to", ["onnx", "ctranslate2", "marian", "web"])
def test_exports_of_right_to_left_models_are_refused(model, to, tmp_path, capsys):
    pytest.importorskip({"ctranslate2": "ctranslate2", "marian": "transformers"}.get(to, "onnx"))
    code = main(["export", model, str(tmp_path / "out"), "--to", to])
    said = capsys.readouterr().err
    assert code == 1 and "The model writes from right to left" in said
    assert not list(tmp_path.rglob("*.onnx"))


@pytest.mark.parametrize(
    "changes",
    [
        {"architecture": "recurrent", **dict.fromkeys(("d_ff", "num_heads"))},
        {"task": "text-classification", "decoder_layers": None},
    ],
)
def test_models_that_have_no_direction_are_refused(recipe, changes):
    asked = recipe.with_options(**changes)
    with refused(RecipeError, "target_direction"):
        task_for(asked).check(asked)
        task_for(asked).config(asked)
