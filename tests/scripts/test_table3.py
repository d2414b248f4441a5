"""Rows of Table 3: scaled as the paper's are, trained once, and shown as they came out."""

import json
import math
from functools import partial

import pytest
from refusals import refused

from scripts.experiments import table3
from scripts.experiments.runs import ExperimentError
from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task
from vanilla_transformer.tasks.sizes import MODEL_FIELDS


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


def test_table_holds_what_the_runs_measured_and_no_run_is_made_twice(options, tmp_path, capsys):
    asked = [*options, "wer", "--rows", "B-dk32", "--runs", "2", "--dropout", "0.1"]
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
    assert "| B-dk32 | d_k 2 |" in text and "| 5.01 | 25.4 | 60 |" in text and "chrf: nrefs:1|" in text

    times = {file: file.stat().st_mtime_ns for file in tmp_path.glob("table/*/model/*.safetensors")}
    table3.main(asked)
    assert times == {file: file.stat().st_mtime_ns for file in times} and len(times) == 4
    with refused(ExperimentError, "max_steps", "3", "5"):
        table3.main([*asked, "--max-steps", "5"])
