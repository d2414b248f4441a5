"""Rows of Table 3: scaled as the paper's are, trained once, and shown as they came out."""

import json
import math
from functools import partial

import pytest
from refusals import refused

from scripts.experiments import table3
from scripts.experiments.runs import ExperimentError, command
from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.recipe.defaults import MODEL_FIELDS
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task

SIZES = {"vocab_size": 270, "d_model": 16, "d_ff": 32, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1}
SMALL = Recipe.of(
    **{**SIZES, "d_model": 128, "d_ff": 512, "encoder_layers": 3, "decoder_layers": 3},
    d_k=32,
    d_v=32,
    dropout=0.1,
    label_smoothing=0.1,
    positional_encoding="sinusoidal",
)


def settled_recipe(config):
    return Recipe.of(**{field: getattr(config, field) for field in MODEL_FIELDS if hasattr(config, field)})


def test_around_the_papers_base_the_rows_are_the_papers():
    assert {"base", *(name for name in VanillaTransformerConfig.presets() if name.startswith("table3-"))} == {
        "base",
        *(f"table3-{row}" for row in table3.TABLE if row != "base"),
    }
    base = settled_recipe(VanillaTransformerConfig.from_preset("base"))
    for row in table3.TABLE:
        if row != "base":
            ours = get_task("translation").config(base.with_options(**table3.scaled(row, base)))
            theirs = VanillaTransformerConfig.from_preset(f"table3-{row}")
            for field in filter(partial(hasattr, theirs), MODEL_FIELDS):
                assert getattr(ours, field) == pytest.approx(getattr(theirs, field)), (row, field)


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        ("A-h1", {"num_heads": 1, "d_k": 128, "d_v": 128}),
        ("A-h4", {"num_heads": 2, "d_k": 64, "d_v": 64}),
        ("A-h32", {"num_heads": 16, "d_k": 8, "d_v": 8}),
        ("B-dk16", {"d_k": 8}),
        ("C-n2", {"encoder_layers": 1, "decoder_layers": 1}),
        ("C-d256", {"d_model": 64, "d_k": 16, "d_v": 16}),
        ("C-dff4096", {"d_ff": 1024}),
        ("D-dropout0.0", {"dropout": 0.0}),
        ("D-smoothing0.2", {"label_smoothing": 0.2}),
        ("E", {"positional_encoding": "learned"}),
    ],
)
def test_rows_change_a_small_base_by_the_papers_factors(row, changes):
    assert table3.scaled(row, SMALL) == pytest.approx(changes)


def test_row_that_the_base_is_too_small_for_says_so():
    with refused(ExperimentError, "base"):
        table3.scaled("A-h1", SMALL.with_options(num_heads=1, d_k=128, d_v=128))
    with refused(ExperimentError, "16 heads", "d_k"):
        table3.scaled("A-h32", SMALL.with_options(d_k=1, d_v=1))


def test_rows_are_chosen_by_letter_and_by_name_in_the_papers_order():
    assert table3.chosen_rows(["E", "B", "A-h1"]) == ["A-h1", "B-dk16", "B-dk32", "E"]
    with refused(ExperimentError, "'F'"):
        table3.chosen_rows(["F"])


def options(pairs, output, *more):
    settings = {**SIZES, "dropout": 0.1, "batch_tokens": 100, "max_steps": 3, "warmup_steps": 4, "save_steps": 2}
    words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*pairs[0], *pairs[1], *words, "--metrics", "chrf", "wer", "--output", str(output), *more]


def test_table_holds_what_the_runs_measured_and_no_run_is_made_twice(pairs, tmp_path, capsys):
    asked = options(pairs, tmp_path / "table", "--rows", "B-dk32", "--runs", "2", "--jobs", "2")
    table3.main(asked)

    table = json.loads((tmp_path / "table" / "table.json").read_text())
    assert [row["row"] for row in table["rows"]] == ["base", "B-dk32"]
    for row in table["rows"]:
        files = [tmp_path / "table" / f"{row['row']}-{seed}" / "model" / "summary.json" for seed in (1, 2)]
        summaries = [json.loads(file.read_text()) for file in files]
        for name, values in {
            "perplexity": [math.exp(summary["last_dev_loss"]) for summary in summaries],
            "chrf": [summary["scores"]["dev"][0]["value"] for summary in summaries],
        }.items():
            low, high = sorted(values)
            assert row["figures"][name]["mean"] == pytest.approx((low + high) / 2)
            assert row["figures"][name]["deviation"] == pytest.approx((high - low) / 2**0.5)
        assert row["parameters"] == summaries[0]["parameters"]
    text = (tmp_path / "table" / "table.md").read_text()
    assert text.strip() in capsys.readouterr().out
    assert "| B-dk32 | d_k 2 |" in text and "| 5.01 | 25.4 | 60 |" in text
    assert "chrf: nrefs:1|" in text

    times = {file: file.stat().st_mtime_ns for file in tmp_path.glob("table/*/model/*.safetensors")}
    assert len(times) == 4
    table3.main(asked)
    assert times == {file: file.stat().st_mtime_ns for file in tmp_path.glob("table/*/model/*.safetensors")}
    assert "min" not in capsys.readouterr().err

    # A run that was stopped after its first checkpoint goes on from there; the others stay.
    stopped = tmp_path / "table" / "B-dk32-2"
    (stopped / "model" / "summary.json").unlink()
    table3.main(asked)
    assert "Going on from the checkpoint" in (stopped / "output.log").read_text()
    assert (tmp_path / "table" / "table.md").read_text() == text
    assert capsys.readouterr().err.startswith("B-dk32-2")

    with refused(ExperimentError, "max_steps", "3", "5"):
        table3.main([*asked, "--max-steps", "5"])


def test_directions_pair_seeds_and_must_exceed_their_spread():
    def result(row, perplexities, scores):
        seeds = [
            {"seed": seed, "diverged": False, "perplexity": perplexity, "chrf": score}
            for seed, (perplexity, score) in enumerate(zip(perplexities, scores, strict=True), 1)
        ]
        figures = {"perplexity": table3.Spread.from_values(perplexities), "chrf": table3.Spread.from_values(scores)}
        return table3.Result(row, "", 1, figures, seeds)

    diverged = table3.Result("B-dk16", "", 1, {"perplexity": None, "chrf": None}, [{"seed": 1, "diverged": True}])
    results = [
        result("base", [5.0, 6.0, 7.0], [50.0, 40.0, 30.0]),
        result("A-h1", [5.2, 6.3, 7.4], [47.0, 37.5, 26.5]),
        result("A-h16", [5.3, 6.0, 6.9], [52.0, 42.5, 33.0]),
        result("A-h32", [5.5], [50.25]),
        diverged,
    ]
    text = table3.markdown(results, SMALL.with_options(max_steps=1, batch_tokens=1))
    assert "| A-h1 | worse (+0.300 ± 0.100) | worse (-3.000 ± 0.500) | worse (+0.37) | worse (-0.9) |" in text
    assert "| A-h16 | within (+0.067 ± 0.208) | better (+2.500 ± 0.500) | better (-0.01) | the same |" in text
    assert "| A-h32 | +0.500, one seed | +0.250, one seed |" in text
    assert "| B-dk16 |  |  |" in text


def test_impossible_tables_are_refused_in_one_sentence(pairs, tmp_path, capsys):
    for words, sentence in (
        ([*pairs[0], "--output", str(tmp_path)], "give the pairs of text as --dev"),
        ([*pairs[0], *pairs[1]], "name a directory as --output"),
        (options(pairs, tmp_path / "failing", "--vocab-size", "100000"), "base-1 failed: "),
    ):
        with pytest.raises(SystemExit) as stop, command("table3.py"):
            table3.main(words)
        assert stop.value.code == 1
        said = capsys.readouterr().err
        assert said.startswith("table3.py: error: ") and sentence in said and said.count("\n") == 1
