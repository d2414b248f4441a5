"""The comparison of decoders: every contestant decodes the same, and the table says how they stand."""

import json
import shutil
from pathlib import Path

import pytest
from refusals import refused
from small_models import save_translator

from scripts.benchmarks import decode as bench
from tests.scripts.conftest import Parent


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A random model with a tokenizer."""
    return save_translator(tmp_path_factory.mktemp("saved"))


def asked(monkeypatch, words):
    """The options of a command line."""
    monkeypatch.setattr("sys.argv", f"bench {words} --threads 1".split())
    return bench._arguments()


def test_a_contestant_that_would_run_another_way_than_its_name_says_refuses(saved, tmp_path, monkeypatch):
    here, changed = asked(monkeypatch, f"{saved} text"), shutil.copytree(saved, tmp_path / "changed")
    with refused(SystemExit, "the graph in int8", "without torch"):  # It is loaded here.
        bench.GraphDecoder(here, tmp_path, "int8")
    for file, setting in ("generation_config.json", {"repetition_penalty": 2.0}), ("config.json", {"more": 1}):
        fields = json.loads((changed / file).read_text())
        (changed / file).write_text(json.dumps({**fields, **setting}))
    there = asked(monkeypatch, f"{changed} text")
    with refused(SystemExit, "the graph in float32", "GenerateSearch"):
        bench.GraphDecoder(there, tmp_path, "float32")
    live = bench.LiveDecoder(here, tmp_path, "float32")
    assert live.versions().endswith("generate in float32")
    assert live.decode(live.encode(["a b"]), bench.Case("", 1, 1, forced=4)) == 4


def test_the_table_says_how_contestants_stand_and_how_ours_decoded(saved, tmp_path, monkeypatch):
    """Ours takes its part in a process of its own, as without torch, and the others here."""
    (tmp_path / "text").write_text("a b\nb\na\n")
    arguments = asked(monkeypatch, f"{saved} {tmp_path}/text --lines 3 --sentences 2 --singles 1 --forced 6")
    bench.export(str(saved), tmp_path)
    cases, memory = bench.cases(arguments), {}
    measured = {case.name: {} for case in cases}
    for name in ("ours-int8", "live-float32", "marian-float32", "ctranslate2-float32"):
        if name == "ours-int8":
            contest = bench.Contest(name, bench.take_part, arguments, tmp_path)
            answers = [contest.answer(), *map(contest.ask, [*cases, None])]
            contest.end()
        else:
            parent = Parent(*cases, None)
            bench.take_part(name, arguments, tmp_path, parent)
            answers = parent.answers
        _, *turns, memory[name] = answers
        for case, turn in zip(cases, turns, strict=True):
            measured[case.name][name] = [turn]
            assert turn["tokens"] == 6 * case.sentences or not case.forced
    said = bench.table(measured, memory)
    assert said.count("| ours-int8 is faster by | live-float32 is faster by |") == 9
    assert said.count("the graph in int8") == said.count("generate in float32") == 1
    first = measured[cases[0].name]
    assert f"| {first['marian-float32'][0]['seconds'] / first['ours-int8'][0]['seconds']:.2f} |" in said
