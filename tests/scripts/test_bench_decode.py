"""The comparison of decoders: every contestant decodes the same, and the table says how they stand."""

import gc
from pathlib import Path

import pytest
from refusals import refused

from scripts.benchmarks import decode as bench
from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A random model with a tokenizer."""
    directory = tmp_path_factory.mktemp("saved")
    tokenizer = VanillaTransformerTokenizer.train(["a b c"], vocab_size=260, algorithm="character")
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=len(tokenizer), **sizes))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def turn(seconds: float, tokens: int = 100) -> dict:
    return {"seconds": seconds, "tokens": tokens, "call": seconds}


def test_ratios_are_those_within_a_turn():
    theirs, ours = [turn(4.0), turn(9.0), turn(2.0)], [turn(2.0), turn(3.0), turn(2.0)]
    assert bench.ratio(theirs, ours) == "2.00 (1.00 to 3.00)"


def test_table_has_a_row_per_contestant_and_ratios_to_the_others():
    turns = {"ours-int8": [turn(1.0)], "ours-float32": [turn(2.0)], "marian-float32": [turn(8.0)]}
    memory = {name: {"peak": 2_000_000_000, "versions": "some"} for name in turns}
    lines = bench.table({"a case": turns}, memory).splitlines()
    assert "| ours-int8 | 100 | 1.000 |  |  |" in lines
    assert "| marian-float32 | 12 | 8.000 | 8.00 (8.00 to 8.00) | 4.00 (4.00 to 4.00) |" in lines
    assert "| ours-int8 | 2.00 GB | some |" in lines


class Engine:
    """Decodes two tokens a row, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int | None]] = []

    def decode(self, rows, beam, forced):
        self.asked.append((len(rows), beam, forced))
        return 2 * len(rows)

    def translate(self, lines):
        return 3 * len(lines)


def test_a_case_is_decoded_in_so_many_calls_of_so_many_sentences():
    worker = object.__new__(bench.Worker)
    worker.engine, worker.rows, worker.lines = Engine(), [[5]] * 9, ["a"] * 9
    assert worker._measure(bench.Case("four", 4, 4, 30, calls=2))["tokens"] == 16
    assert worker.engine.asked == [(4, 4, 30), (4, 4, 30)]
    assert worker._measure(bench.Case("file", 0, 4))["tokens"] == 27


def test_too_short_a_file_is_refused(tmp_path):
    (tmp_path / "text").write_text("one\n\ntwo\n")
    assert bench.read_lines(str(tmp_path / "text"), 2) == ["one", "two"]
    with refused(SystemExit, "2 lines", "3"):
        bench.read_lines(str(tmp_path / "text"), 3)


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
