"""The measurement of planning in parts, on few pairs."""

from scripts.benchmarks import planning


def test_made_up_lengths_are_planned_in_parts_with_every_pair_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(planning, "PAIRS_OF_A_SHARD", 100)

    def here(options, place, part_pairs):
        options.part_pairs = [part_pairs]
        return planning.measured(options, place)

    monkeypatch.setattr(planning, "in_new_process", here)
    planning.main([str(tmp_path), "--pairs", "450", "--part-pairs", "200", "--batch-tokens", "400", "--epochs", "2"])
    cells = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert (cells[0], cells[1], cells[-1]) == ("450", "3", "yes") and 0 < float(cells[5].rstrip("%")) < 50
