"""Quality with and without what makes training fast: the same pairs, other batches, and a table of the scores."""

import json

from scripts.experiments import quality


def test_table_has_each_variant_with_each_seed(options, tmp_path, capsys):
    quality.main([*options, "--runs", "1"])
    rows = json.loads((tmp_path / "table" / "quality.json").read_text())
    assert list(rows) == list(quality.VARIANTS)
    assert len({seed["perplexity"] for seeds in rows.values() for seed in seeds}) == 5
    assert (tmp_path / "table" / "quality.md").read_text() in capsys.readouterr().out
