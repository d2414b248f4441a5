"""Lines in memory, translated by several processes: what one gives, whoever does which part."""

import threading

import pytest
import torch
from echo import Echo

from vanilla_transformer.translation import Hypothesis, Translation
from vanilla_transformer.translation import processes as module
from vanilla_transformer.translation.processes import OneProcess, ProcessesError, SeveralProcesses
from vanilla_transformer.translation.together import take_part, translate_together

LINES = [*(f"line {number}" for number in range(50)), "x"]


class Translator(Echo):
    """Translates a line into itself, whatever stands with it, and notes what it was given."""

    def __init__(self, window=1000):
        self.window = window
        self.did = []

    def translate(self, lines, progress=lambda count: None):
        self.did.append(lines)
        progress(len(lines))
        return [Translation((Hypothesis(line, -0.5, 2), Hypothesis("", None, 0)), line == "x") for line in lines]


def expected():
    return Translator().translate(LINES)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(module, "_LOOK", 0.001)


def test_one_process_takes_windows_in_order_and_tells_how_far_it_is():
    translator, done = Translator(window=20), []
    assert translate_together(translator, LINES, OneProcess(), done.append) == expected()
    assert translator.did == [LINES[:20], LINES[20:40], LINES[40:]]
    assert [count for count in done if count] == [20, 20, 11]


def test_nothing_gives_nothing():
    assert translate_together(Translator(), [], OneProcess()) == []


def test_several_processes_give_what_one_gives_and_the_main_one_hears_of_all():
    all_have_begun = threading.Barrier(3, timeout=30)

    class Waiting(Translator):
        def translate(self, lines, progress=lambda count: None):
            if not self.did:
                all_have_begun.wait()
            return super().translate(lines, progress)

    store, translators, done = torch.distributed.HashStore(), [Waiting() for _ in range(3)], []
    processes = [SeveralProcesses(store, rank, 3) for rank in range(3)]
    processes[0].start({"windows": 0})

    def help_out(rank):
        processes[rank].await_start()
        take_part(translators[rank], LINES, processes[rank])

    others = [threading.Thread(target=help_out, args=(rank,), daemon=True) for rank in (1, 2)]
    for thread in others:
        thread.start()
    assert translate_together(translators[0], LINES, processes[0], done.append) == expected()
    for thread in others:
        thread.join(10)
    assert all(translator.did for translator in translators)
    # Each line once, in windows that are a part of any one's share.
    did = [lines for translator in translators for lines in translator.did]
    assert sorted(line for lines in did for line in lines) == sorted(LINES)
    assert max(map(len, did)) == 5
    assert sum(done) == len(LINES)


def test_a_process_that_is_gone_with_its_part_is_named(monkeypatch):
    monkeypatch.setattr(module, "SILENCE", 0.1)
    store = torch.distributed.HashStore()
    main, gone = SeveralProcesses(store, 0, 2), SeveralProcesses(store, 1, 2)
    main.start({"windows": 0})
    gone.claim()
    with pytest.raises(ProcessesError, match=r"Process 1 has given no sign of life .* start all again\."):
        translate_together(Translator(), LINES, main)
