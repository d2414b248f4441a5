"""The benchmark of language models, with tiny ones: all contestants write as many tokens as they are to."""

import argparse

import pytest

from scripts.benchmarks import decode_causal


@pytest.mark.parametrize("name", ["ours-float32", "ours-int8", "gpt2-float32", "ctranslate2-int8"])
def test_a_contestant_decodes_as_long_as_it_is_told(name: str):
    kind, precision = name.split("-")
    load = {"ours": decode_causal.load_ours, "gpt2": decode_causal.load_gpt2}
    if kind == "ctranslate2":
        pytest.importorskip("ctranslate2")
    arguments = argparse.Namespace(width=16, vocabulary=150, threads=1)
    decode = load.get(kind, decode_causal.load_ctranslate2)(arguments, precision)
    for beam in (1, 4):
        decode(2, beam, 5)  # It looks at what has been written itself.


def test_the_best_of_ours_is_compared_turn_by_turn():
    rates = {"ours-float32": [10.0, 12.0], "ours-int8": [30.0, 40.0], "gpt2-float32": [10.0, 10.0]}
    assert decode_causal.ratio(rates) == "3.50 (3.00 to 4.00)"
    assert decode_causal.ratio({"gpt2-float32": [1.0]}) == ""
