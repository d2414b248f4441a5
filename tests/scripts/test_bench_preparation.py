"""Counts of the preparation benchmark, on a small corpus."""

import math
from collections import Counter

import pytest

from scripts.benchmarks import preparation as bench_preparation


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_preparation, "LINES_PER_CHUNK", 1_500)
    monkeypatch.setattr(bench_preparation, "WORDS", 1_000)
    for seed, name in enumerate(bench_preparation.SIDES):
        bench_preparation.write_text(tmp_path / name, 5_000, seed)
    return tmp_path


def test_the_corpus_has_the_lines_asked_for_and_frequent_words_first(directory):
    lines = (directory / "corpus.source").read_text().splitlines()
    words = [word for line in lines for word in line.split()]
    assert len(lines) == 5_000 and all(3 <= len(line.split()) <= 20 for line in lines)
    counts = [count for _, count in Counter(words).most_common(10)]
    assert counts[0] / len(words) == pytest.approx(math.log(2, 1_000), abs=0.02)
    assert sum(counts) / len(words) == pytest.approx(math.log(11, 1_000), abs=0.02)
    assert (directory / "corpus.target").read_text().splitlines() != lines


def test_text_is_read_twice_and_tokens_are_written_once(directory):
    text = sum((directory / name).stat().st_size for name in bench_preparation.SIDES)
    first = bench_preparation._measured(directory, first=True)
    assert first["pairs"] == 5_000
    # Beside the text, what loading and saving a tokenizer of a few types reads and writes.
    assert 2 * text <= first["read"] < 2.8 * text
    assert first["tokens_bytes"] <= first["written"] < first["tokens_bytes"] + 0.8 * text
    again = bench_preparation._measured(directory, first=False)
    assert again["read"] < 0.8 * text and again["written"] < 0.1 * text
    assert again["tokens"] == first["tokens"] > 5_000 * 3
    table = bench_preparation.table(text, first, again)
    assert table.count("\n") == 14 and "| pairs, text | 5,000, " in table
