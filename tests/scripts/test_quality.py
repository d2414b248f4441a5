"""Quality with and without what makes training fast: the same pairs, other batches, and a table of the scores."""

import json

import numpy as np
import pytest
from refusals import refused

from scripts.experiments import quality
from scripts.experiments.runs import ExperimentError, command

SIZES = {"vocab_size": 270, "d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}


def options(pairs, output, *more):
    settings = {**SIZES, "batch_tokens": 100, "batches_per_step": 2, "max_steps": 3, "warmup_steps": 4}
    words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*pairs[0], *pairs[1], *words, "--eval-steps", "1", "--metrics", "chrf", "--output", str(output), *more]


def test_batches_at_random_have_every_pair_once_and_the_tokens_of_ours():
    random = np.random.default_rng(0)
    lengths = random.integers(3, 30, size=(2, 2000)).astype(np.int32)
    plan = quality.PlanAtRandom(*lengths, batch_tokens=1000, batches_per_step=2, seed=1)
    ours = quality.StepPlan(*lengths, batch_tokens=1000, batches_per_step=2, seed=1).epoch(0)
    steps = plan.epoch(0)
    indices = np.concatenate([batch for step in steps for batch in step.batches])
    assert sorted(indices) == list(range(2000))
    assert not np.array_equal(indices, np.concatenate([batch for step in plan.epoch(1) for batch in step.batches]))
    assert len(steps) == len(ours)
    tokens = np.array([step.items for step in steps[:-1]])
    assert tokens.mean() == pytest.approx(np.mean([step.items for step in ours[:-1]]), rel=0.01)
    assert tokens.std() < 0.1 * tokens.mean()
    assert sum(step.items for step in steps) == lengths[1].sum()
    # Neighbours in a batch are of all lengths.
    assert np.mean([np.ptp(lengths[0][batch]) for step in steps for batch in step.batches]) > 20
    assert np.mean([np.ptp(lengths[0][batch]) for step in ours for batch in step.batches]) < 20


def test_table_has_each_variant_with_each_seed_and_is_not_made_twice(pairs, tmp_path, capsys):
    quality.main(options(pairs, tmp_path / "table", "--runs", "2"))
    table = capsys.readouterr().out
    assert [line.split(" | ")[1] for line in table.splitlines() if "±" in line and line.startswith("|")] == [
        "1, 2"
    ] * 5
    rows = json.loads((tmp_path / "table" / "quality.json").read_text())
    assert list(rows) == list(quality.VARIANTS)
    perplexities = {seed["perplexity"] for seeds in rows.values() for seed in seeds}
    assert len(perplexities) == 10
    weights = [file.stat().st_mtime_ns for file in sorted(tmp_path.rglob("model.safetensors"))]
    quality.main(options(pairs, tmp_path / "table", "--runs", "2"))
    assert capsys.readouterr().out == table
    assert [file.stat().st_mtime_ns for file in sorted(tmp_path.rglob("model.safetensors"))] == weights


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--variants", "as-it-was"], "'as-it-was'"),
        (["--runs", "0"], "at least 1"),
        (["--dev"], "dev"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(pairs, tmp_path, more, named):
    with refused(ExperimentError, *named.split()):
        quality.main(options(pairs, tmp_path / "table", *more))


def test_an_error_is_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit), command("quality.py"):
        quality.main(["--output", str(tmp_path)])
    assert capsys.readouterr().err.startswith("quality.py: error: Quality is measured on dev")
