"""The measurement beside busy programs, without its measurements."""

import os
import time

import psutil

from scripts.benchmarks import busy


def loops():
    return [child.pid for child in psutil.Process().children() if busy.LOOP in child.cmdline()]


def test_each_cell_is_measured_beside_its_neighbours_in_turn(monkeypatch, capsys):
    asked = []

    def train(workload, variables, processes, folder, seconds):
        time.sleep(0.1)  # A process that is just being started has no command line yet.
        asked.append((processes, len(loops())))
        assert all(os.getsid(loop) == loop for loop in loops())
        return float(len(asked))

    monkeypatch.setattr(busy, "train", train)
    busy.main(["--workloads", "train small", "--neighbours", "0", "2", "--rounds", "3"])
    processes = [count for _, count in busy.VARIANTS.values()]
    assert asked == [(one, count) for count in (0, 2) for _ in range(3) for one in processes]
    assert "one process: 5.0 (2.0 to 8.0)" in capsys.readouterr().out
    assert not loops()
