"""Batches side by side: the same results in the same order, and nothing left behind."""

import threading
import time

import pytest
import torch
from refusals import refused

from vanilla_transformer.translation.translator import run_in_threads

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(2)


def test_two_at_a_time_in_order():
    together = threading.Barrier(2, timeout=300)

    def work(number: int) -> tuple[int, int]:
        together.wait()  # Breaks unless two parts are worked on at once.
        return number, torch.get_num_threads()

    assert list(run_in_threads(work, list(range(6)), CPU)) == [(number, 1) for number in range(6)]
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [2] and torch.get_num_threads() == 2


def test_a_failing_part_ends_the_others():
    done = []

    def work(number: int) -> int:
        if number == 1:
            raise ValueError("no more")
        time.sleep(0.001)
        done.append(number)
        return number

    found = run_in_threads(work, list(range(1000)), CPU)
    assert next(found) == 0
    with refused(ValueError, "no more"):
        next(found)
    assert len(done) < 999 and torch.get_num_threads() == 2
