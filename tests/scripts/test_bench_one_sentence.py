"""The comparison of single calls: the least of each line over the turns, and how the code here stands."""

import argparse

from refusals import refused

from scripts.benchmarks import one_sentence as bench


class Contestant:
    """Answers with what it is given, turn by turn."""

    def __init__(self, *turns: list[float]) -> None:
        self.turns = iter([turn for turn in turns for _ in bench.CASES])

    def decode(self, case):
        return {"milliseconds": next(self.turns)}


def test_each_line_counts_by_its_least_turn():
    contestants = {"here": Contestant([3.0, 1.0], [2.0, 9.0]), "ctranslate2": Contestant([1.0, 1.0], [1.0, 1.0])}
    times = bench.take_turns(contestants, 2)
    assert times == {case.name: {"here": 1.5, "ctranslate2": 1.0} for case in bench.CASES}
    assert "| greedy | 1.50 | 1.00 | 1.50 |" in bench.table(times).splitlines()


def test_the_second_call_is_what_counts():
    made = []
    assert bench.second_call(lambda: made.append(1)) >= 0.0
    assert len(made) == 2


def test_a_checkout_is_named(tmp_path):
    (tmp_path / "vanilla_transformer").mkdir()
    assert bench._checkout(f"before={tmp_path}") == ("before", str(tmp_path))
    for wrong in (str(tmp_path), f"here={tmp_path}", f"before={tmp_path / 'none'}"):
        with refused(argparse.ArgumentTypeError, "NAME=DIRECTORY"):
            bench._checkout(wrong)
