"""The measurement of sub-word sampling, on few pairs."""

from scripts.benchmarks import subword_sampling


def test_each_kind_and_strength_has_a_row(tmp_path, capsys):
    paths = [tmp_path / "train.en", tmp_path / "train.de"]
    for path in paths:
        path.write_text("a walker walks and walks\nwalking walkers talk\n" * 10)
    subword_sampling.main([*map(str, paths), "--vocab-size", "275", "--epochs", "1"])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows[2:]] == ["bpe 0.05", "bpe 0.1", "bpe 0.2", "unigram 0.5", "unigram 0.2"]
    assert all(int(row[2]) < int(row[3]) for row in rows[3:])
