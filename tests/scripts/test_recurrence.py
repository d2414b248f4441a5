"""The recurrent models beside the Transformer: about as many parameters, the same text, and a table of both."""

import json

import pytest

from scripts.experiments import recurrence
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import task_for


def test_each_architecture_has_about_the_transformers_parameters():
    base = Recipe.of(vocab_size=8000, preset="tiny", d_model=128, d_ff=256, num_heads=4, learning_rate_scale=2.5)
    base = base.with_options(encoder_layers=4, decoder_layers=4, positional_encoding="sinusoidal")
    for name in recurrence.ARCHITECTURES:
        recipe = recurrence.recipe_of(name, base, layers=2)
        assert recurrence.parameters(recipe) == pytest.approx(recurrence.parameters(base), rel=0.05)
        config = task_for(recipe).config(recipe)
        if name != recurrence.TRANSFORMER:
            _, fields = recurrence.ARCHITECTURES[name]
            assert {field: getattr(config, field) for field in fields} == fields
            assert config.num_layers == 2 and recipe.optimization.learning_rate_scale == 1.0


def test_table_and_pictures_are_made(options, tmp_path, capsys):
    recurrence.main([*options, "--architectures", "transformer", "lstm"])
    table = capsys.readouterr().out
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == [f"| {recurrence.ARCHITECTURES[name][0]}" for name in ("transformer", "lstm")]
    assert [row[4] for row in rows] == ["3", "3"]
    results = json.loads((tmp_path / "table" / "table.json").read_text())
    assert [set(result["by_length"]) for result in results] == [{"short", "middle", "long"}] * 2
    assert (tmp_path / "table" / "pictures.png").read_bytes().startswith(b"\x89PNG")
