"""Table 1 of the paper, from real layers."""

import json

import pytest
import torch

from scripts.experiments import table1

ROWS = {row.name: row for row in table1.table_rows(window=8, kernel=3)}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("n", "d"), [(16, 64), (24, 64), (16, 128)])
def test_operations_are_those_that_the_layer_multiplies(name, n, d):
    row = ROWS[name]
    counted = table1.count_multiplications(row.make(d), n, d)
    if "restricted" in name:
        # A mask multiplies everything: what it leaves over is less.
        assert row.operations(n, d) < counted == ROWS["self-attention"].operations(n, d)
    else:
        assert row.operations(n, d) == counted


@pytest.mark.parametrize("name", ROWS)
def test_paths_are_as_long_as_the_formula_says(name):
    for n in (9, 17, 30):
        assert table1.path_length(ROWS[name], n, 8) == ROWS[name].path(n)


def test_only_recurrence_waits_for_each_position():
    for name, row in ROWS.items():
        short, long = (table1.longest_chain(row.make(8), n, 8) for n in (10, 20))
        assert long - short == (10 if name == "recurrent" else 0)


def test_restricted_attention_sees_its_window_alone():
    layer = table1.SelfAttention(8, window=4)
    x = torch.randn(1, 12, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x)[0, 6].sum(), x)
    assert [place for place in range(12) if gradient[0, place].abs().max() > 0] == [4, 5, 6, 7, 8]


def test_memory_is_quadratic_for_attention_and_linear_for_recurrence():
    def kept(name: str, n: int) -> int:
        return table1.saved_bytes(ROWS[name].make(64), torch.randn(1, n, 64, requires_grad=True))

    assert kept("self-attention", 2048) > 3 * kept("self-attention", 1024)
    assert kept("recurrent", 512) <= 2 * kept("recurrent", 256)


def test_the_crossing_lies_where_the_times_meet():
    def cost(layer: str, n: int, milliseconds: float) -> table1.Cost:
        return table1.Cost(layer, n, 64, milliseconds, 0)

    costs = [cost("self-attention", n, n * n) for n in (10, 100)] + [cost("recurrent", n, 30 * n) for n in (10, 100)]
    assert table1.crossing(costs, 64, "recurrent") == pytest.approx(30)
    assert table1.crossing(costs[:1] + costs[2:3], 64, "recurrent") is None
    # Where the shortest takes longer by chance, it is not slower from there on.
    noisy = [cost("self-attention", 5, 160), *costs[:2], cost("recurrent", 5, 150), *costs[2:]]
    assert table1.crossing(noisy, 64, "recurrent") == pytest.approx(30)
    assert table1.crossing(costs[1:2] + costs[3:], 64, "recurrent") == 100


def test_the_command_writes_table_numbers_and_picture(tmp_path, capsys):
    table1.main(
        ["--output", str(tmp_path), "--lengths", "4", "8", "--widths", "8", "--repeats", "1", "--threads", "1"]
    )
    report = json.loads((tmp_path / "table1.json").read_text())
    assert {(cost["layer"], cost["n"]) for cost in report["costs"]} == {(name, n) for name in ROWS for n in (4, 8)}
    assert (tmp_path / "table1.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.count("O(n²·d)") == 1
    with pytest.raises(SystemExit):
        table1.main(["--output", str(tmp_path), "--kernel", "4"])
