"""The benchmark of live weights prints each case."""

from scripts.benchmarks import live


def test_each_case_is_timed(capsys):
    live.main(["--preset", "tiny", "--tokens", "4", "--turns", "1", "--cases", "1 sentence, greedy", "--cpu"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("1 sentence, greedy: library ") and "library over live" in line
