"""Quality with and without what makes training fast: the same pairs, other batches, and a table of the scores."""

import json

from scripts.experiments import quality

SIZES = {"vocab_size": 270, "d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}


def options(pairs, output, *more):
    settings = {**SIZES, "batch_tokens": 100, "batches_per_step": 2, "max_steps": 3, "warmup_steps": 4}
    words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*pairs[0], *pairs[1], *words, "--eval-steps", "1", "--metrics", "chrf", "--output", str(output), *more]


def test_table_has_each_variant_with_each_seed_and_is_not_made_twice(pairs, tmp_path, capsys):
    quality.main(options(pairs, tmp_path / "table", "--runs", "1"))
    table = capsys.readouterr().out
    rows = json.loads((tmp_path / "table" / "quality.json").read_text())
    assert list(rows) == list(quality.VARIANTS)
    perplexities = {seed["perplexity"] for seeds in rows.values() for seed in seeds}
    assert len(perplexities) == 5
    weights = [file.stat().st_mtime_ns for file in sorted(tmp_path.rglob("model.safetensors"))]
    quality.main(options(pairs, tmp_path / "table", "--runs", "1"))
    assert capsys.readouterr().out == table
    assert [file.stat().st_mtime_ns for file in sorted(tmp_path.rglob("model.safetensors"))] == weights
