"""The comparison of decoders: every contestant decodes the same, and the table says how they stand."""

import gc
from pathlib import Path

import pytest
from refusals import refused
from small_models import save_translator

from scripts.benchmarks import decode as bench


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A random model with a tokenizer."""
    return save_translator(tmp_path_factory.mktemp("saved"))


def turn(seconds: float, tokens: int = 100) -> dict:
    return {"seconds": seconds, "tokens": tokens, "call": seconds}


def test_table_has_a_row_per_contestant_and_ratios_to_the_others():
    turns = {"ours-int8": [turn(1.0)], "ours-float32": [turn(2.0)], "marian-float32": [turn(8.0)]}
    memory = {name: {"peak": 2_000_000_000, "versions": "some"} for name in turns}
    lines = bench.table({"a case": turns}, memory).splitlines()
    assert "| ours-int8 | 100 | 1.000 |  |  |" in lines
    assert "| marian-float32 | 12 | 8.000 | 8.00 (8.00 to 8.00) | 4.00 (4.00 to 4.00) |" in lines
    assert "| ours-int8 | 2.00 GB | some |" in lines


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


@pytest.mark.parametrize("contestant", ["OurEngine", "MarianEngine", "CTranslate2Engine"])
def test_every_contestant_decodes_to_the_length_asked_for(saved, tmp_path, contestant):
    bench.export(str(saved), tmp_path)
    engine = getattr(bench, contestant)(str(saved), tmp_path, "float32", "cpu", 1)
    rows = engine.tokenizer(["a b", "b"])["input_ids"]
    assert engine.decode(rows, 4, 6) == engine.decode(rows, 1, 6) == 2 * 6
    assert 2 <= engine.translate(["a b", "b"]) <= 2 * (max(map(len, rows)) + 50)
    assert engine.versions()
