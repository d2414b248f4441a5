"""The comparison of decoders: every contestant decodes the same, and the table says how they stand."""

import gc
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


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_ours_decodes_with_frozen_weights_and_says_so(saved, tmp_path, precision):
    engine = bench.OurEngine(str(saved), tmp_path, precision, "cpu", 1)
    gc.collect()
    rows = engine.tokenizer(["a b"])["input_ids"]
    assert engine.decode(rows, 1, 4) == 4
    assert bench.way_of(engine.model) == f"frozen {precision} weights" and engine.versions().endswith(engine.way)
    engine.frozen.__exit__(None, None, None)
    for decode in (lambda: engine.decode(rows, 1, 4), lambda: engine.translate(["a b"])):
        with refused(SystemExit, precision, "live"):
            decode()


def test_the_table_says_how_contestants_stand_and_with_which_weights_ours_decoded(saved, tmp_path, monkeypatch):
    """Each takes its part here instead of in a process of its own."""
    (tmp_path / "text").write_text("a b\nb\na\n")
    words = f"bench {saved} {tmp_path}/text --lines 3 --sentences 2 --singles 1 --forced 6 --threads 1"
    monkeypatch.setattr("sys.argv", words.split())
    arguments = bench._arguments()
    bench.export(str(saved), tmp_path)
    cases, memory = bench.cases(arguments), {}
    measured = {case.name: {} for case in cases}
    for name in ("ours-int8", "marian-float32", "ctranslate2-float32"):
        parent = Parent(*cases, None)
        bench.take_part(name, arguments, tmp_path, parent)
        _, *turns, memory[name] = parent.answers
        for case, turn in zip(cases, turns, strict=True):
            measured[case.name][name] = [turn]
            assert turn["tokens"] == 6 * case.sentences or not case.forced
    said = bench.table(measured, memory)
    assert said.count("ours-int8 is faster by") == 7 and said.count("frozen int8 weights") == 1
    first = measured[cases[0].name]
    assert f"| {first['marian-float32'][0]['seconds'] / first['ours-int8'][0]['seconds']:.2f} |" in said
