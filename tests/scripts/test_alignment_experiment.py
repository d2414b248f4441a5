"""The experiment on alignments."""

import re

from scripts.experiments.alignment import error_rate, main, read_links
from tests.inspection.conftest import model, model_directory, tokenizer  # noqa: F401


def test_the_error_rate_is_none_for_the_links_themselves_and_counts_both_sides():
    gold = [{(0, 0), (1, 1)}, {(0, 1)}]
    assert error_rate(gold, gold) == 0
    assert error_rate([{(0, 0)}, {(1, 0)}], gold) == 1 - 2 * 1 / 5
    assert read_links("0-0 10-2") == {(0, 0), (10, 2)}


def test_the_chosen_heads_stand_beside_every_layer(model_directory, tmp_path, capsys):  # noqa: F811
    for side, line in (("en", "A dog runs in the park.\n"), ("de", "Ein Hund läuft im Park.\n")):
        (tmp_path / side).write_text(line * 2, encoding="utf-8")
    (tmp_path / "links").write_text("0-0 1-1\n0-9\n")
    pair = [str(tmp_path / side) for side in ("en", "de")]
    main([model_directory, "--held-out", *pair, "--test", *pair, "--links", str(tmp_path / "links")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 pairs, heads chosen on 2"
    rates = [float(re.fullmatch(r"\| .* \| (\d\.\d{3}) \|", line)[1]) for line in lines[4:]]
    assert len(rates) == 1 + 2 * 3 + 1 and all(0 <= rate <= 1 for rate in rates)
