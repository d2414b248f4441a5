"""The recurrent models beside the Transformer: about as many parameters, the same text, and a table of both."""

import json

import pytest

from scripts.experiments import recurrence
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import task_for

SIZES = {"vocab_size": 270, "d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}


def options(pairs, output, *more):
    settings = {**SIZES, "batch_tokens": 100, "batches_per_step": 2, "warmup_steps": 4, "save_steps": 2}
    words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*pairs[0], *pairs[1], *words, "--eval-steps", "1", "--metrics", "chrf", "--output", str(output), *more]


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


def test_table_and_pictures_are_made_and_no_run_twice(pairs, tmp_path, capsys):
    words = options(pairs, tmp_path / "table", "--max-steps", "3", "--architectures", "transformer", "lstm")
    recurrence.main(words)
    table = capsys.readouterr().out
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == [f"| {recurrence.ARCHITECTURES[name][0]}" for name in ("transformer", "lstm")]
    assert [row[4] for row in rows] == ["3", "3"]
    results = json.loads((tmp_path / "table" / "table.json").read_text())
    assert [set(result["by_length"]) for result in results] == [{"short", "middle", "long"}] * 2
    assert (tmp_path / "table" / "pictures.png").read_bytes().startswith(b"\x89PNG")
    weights = [file.stat().st_mtime_ns for file in sorted(tmp_path.rglob("model.safetensors"))]
    recurrence.main(words)
    assert capsys.readouterr().out == table
    assert [file.stat().st_mtime_ns for file in sorted(tmp_path.rglob("model.safetensors"))] == weights
