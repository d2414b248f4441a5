"""A short form of the fuzzing of all readers, and that it notices a reader that does what none may."""

import random
import time

import fuzz_readers
import pytest

from vanilla_transformer.data.lines import CorpusError

SEEDS = 16


@pytest.mark.parametrize("reader", fuzz_readers.READERS)
def test_malformed_files_are_read_in_full_or_refused_in_a_sentence(reader, monkeypatch):
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    for seed in range(SEEDS):
        fuzz_readers.fuzz(reader, seed)


def lose(directory):
    raise fuzz_readers.BadReader("3 pairs of 4 were read")


def stumble(directory):
    raise KeyError("source")


def blame_nobody(directory):
    raise CorpusError("something is wrong")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lose, "3 pairs of 4"),
        (stumble, "KeyError: 'source'"),
        (blame_nobody, "does not say where"),
        (lambda directory: time.sleep(30), "Hang: no end after 1 s"),
    ],
)
def test_a_reader_that_loses_stumbles_or_hangs_is_noticed(monkeypatch, read, message):
    monkeypatch.setattr(fuzz_readers, "LONGEST_WAIT", 1)
    reader = fuzz_readers.READERS["TSV"]
    monkeypatch.setitem(fuzz_readers.READERS, "TSV", fuzz_readers.Reader(reader.make, reader.files, read))
    with pytest.raises(fuzz_readers.BadReader, match=message):
        fuzz_readers.fuzz("TSV", 0)


def test_another_seed_makes_another_file():
    whole = b"source\ttarget\na\tb\n" * 5
    made = {fuzz_readers.malformed(whole, random.Random(seed), ".tsv") for seed in range(200)}
    assert len(made) > 150 and fuzz_readers.malformed(whole, random.Random(3), ".tsv") in made
