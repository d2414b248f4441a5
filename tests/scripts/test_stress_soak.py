"""A soak detects memory that grows, and loses no line."""

import mmap
import os
import subprocess

import numpy as np
import pytest

from scripts.stress import soak


def memory(resident):
    seconds = [5.0 * number for number in range(len(resident))]
    return soak.Memory(seconds, [int(value) for value in resident], [7] * len(seconds), [3, *[5] * (len(seconds) - 1)])


def test_growth_is_what_is_added_an_hour_once_the_process_is_warm():
    warming = 4e8 * np.minimum(np.arange(400) / 90, 1)
    leak = 1e6 * 5.0 * np.arange(400) / 3600
    assert memory(warming).growth() == pytest.approx((0, 0), abs=1e-3)
    assert memory(warming + leak).growth() == pytest.approx((1e6, 1e6), rel=1e-3)


def test_memory_that_is_given_back_is_no_growth():
    bump = np.full(400, 5e8)
    bump[250:320] += 4e6
    least_squares, median = memory(bump).growth()
    assert abs(least_squares) > 1e6 and median == 0


def test_the_table_has_a_row_for_each_process_and_says_what_it_held():
    rows = soak.table({"training": memory([5e8] * 361), "translation": memory([4e8] * 361)}).splitlines()
    assert rows[0].startswith("| MB resident, mean | to 5 min | to 10 min |") and "to 30 min" in rows[0]
    assert rows[2] == "| training | 500.0 | 500.0 | 500.0 | 500.0 | 500.0 | 500.0 | +0.00 | +0.00 | 7 to 7 | 3 to 5 |"
    assert len({row.count("|") for row in rows}) == 1


def test_a_look_sees_what_the_process_holds():
    seen = soak.Memory()
    seen.look(os.getpid(), 0.0)
    # Not from numpy: that may be given memory which the process has already.
    with mmap.mmap(-1, 64_000_000) as held, open(os.devnull):
        held.write(bytes(len(held)))
        seen.look(os.getpid(), 1.0)
        assert seen.resident[1] - seen.resident[0] > 0.9 * len(held), "memory that is held is counted"
    assert seen.files[1] == seen.files[0] + 1


def test_all_lines_that_are_sent_come_back_before_it_ends():
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    lines = soak._Lines(process)
    while lines.received < 500:
        assert process.poll() is None
    lines.end()
    assert process.wait() == 0 and lines.received == lines.sent >= 500
