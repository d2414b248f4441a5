"""The measurement beside busy programs, without its measurements."""

import os
import time

import psutil

from scripts.benchmarks import busy


def loops():
    # A process that is just being started has no command line yet.
    while not all(child.cmdline() for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE):
        time.sleep(0.01)
    return [child for child in psutil.Process().children() if busy.LOOP in child.cmdline()]


def test_each_cell_is_measured_beside_its_neighbours_in_turn(monkeypatch, capsys):
    monkeypatch.setattr(busy, "make_model", lambda folder: None)
    asked = []

    def measure(workload, variant, folder, seconds):
        asked.append((workload, variant, len(loops())))
        assert all(os.getsid(loop.pid) == loop.pid for loop in loops())
        return float(len(asked))

    monkeypatch.setattr(busy, "measure", measure)
    busy.main(["--workloads", "train small", "one sentence", "--neighbours", "0", "2", "--rounds", "3"])
    training, decoding = list(busy.VARIANTS), list(busy.VARIANTS)[:2]
    assert asked == [
        (workload, variant, count)
        for workload, variants in (("train small", training), ("one sentence", decoding))
        for count in (0, 2)
        for _ in range(3)
        for variant in variants
    ]
    assert "| train small | 0 | 4.0 (1.0 to 7.0) | 5.0 (2.0 to 8.0) | 6.0 (3.0 to 9.0) |" in capsys.readouterr().out
    assert not loops()
