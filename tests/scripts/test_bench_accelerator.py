"""The record of an accelerator says what each part printed, also of one that ran out of time."""

import sys
import time

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
