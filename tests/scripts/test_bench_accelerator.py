"""The record of an accelerator says what each part printed, also of one that ran out of time."""

import sys
import time
from types import SimpleNamespace

from scripts.benchmarks import accelerator
from scripts.benchmarks.accelerator import output_of

PART = """
import subprocess, sys, time
print("said", flush=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
{end}
"""


def test_a_part_that_is_not_done_ends_with_its_processes_and_says_what_it_had_printed(tmp_path):
    begun = time.monotonic()
    slow = output_of([sys.executable, "-c", PART.format(end="time.sleep(600)")], tmp_path, 5)
    assert slow.startswith("said") and slow.endswith("seconds, and was not done)")
    assert time.monotonic() - begun < 300  # It did not wait for the other process.


def test_a_part_that_fails_says_why(tmp_path):
    failed = output_of([sys.executable, "-c", "print('{directory}'); raise SystemExit('no')"], tmp_path, 60)
    assert failed.startswith(f"{tmp_path}\nno\n") and "failed with the code 1)" in failed


def test_all_parts_end_within_ten_minutes(monkeypatch, capsys):
    command, seconds = [sys.executable, "-c", "print('said')"], iter((0, 0, 591))
    monkeypatch.setattr(accelerator, "PARTS", {"one": lambda folder: [command], "two": lambda folder: [command]})
    clock = SimpleNamespace(monotonic=lambda: next(seconds), perf_counter=time.perf_counter)
    monkeypatch.setattr(accelerator, "time", clock)
    accelerator.main([])
    one, two = capsys.readouterr().out.split("## Two")
    assert "said" in one and "was not done" not in one and "was not done" in two
