"""A sweep of training runs, by the time that each computes."""

import pytest

from scripts.experiments import minutes
from scripts.experiments.runs import ExperimentError


def test_each_cell_is_trained_once_and_stands_in_the_table_with_its_options(options, tmp_path, monkeypatch, capsys):
    given = options[: options.index("--output")] + ["--test", *options[1:3], "--metrics", "chrf"]
    cells, table = tmp_path / "cells.txt", tmp_path / "sweep" / "minutes.md"
    cells.write_text(f"# A comment.\nplain: {' '.join(given)}\nwrong: --no-such-option\n")
    minutes.main([str(cells), "--output", str(tmp_path / "sweep")])
    plain, wrong = table.read_text().splitlines()[-2:]
    assert plain.startswith("| plain | 3 | ") and "chrf" in plain and "--max-steps 3" in plain
    assert "failed: see" in wrong and "--no-such-option" in (tmp_path / "sweep" / "wrong" / "output.log").read_text()
    assert not list((tmp_path / "sweep").rglob("*.safetensors"))
    monkeypatch.setattr(minutes, "run", None)
    minutes.main([str(cells), "--output", str(tmp_path / "sweep")])
    cells.write_text("no name\n")
    with pytest.raises(ExperimentError, match="no name"):
        minutes.main([str(cells), "--output", str(tmp_path / "sweep")])
