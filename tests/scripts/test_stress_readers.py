"""A short form of the fuzzing of all readers, and that it notices a reader that does what none may."""

import random
import time

import pytest
from refusals import refused

from scripts.stress import readers
from vanilla_transformer.data.text_lines import CorpusError

SEEDS = 16


@pytest.mark.parametrize("reader", readers.READERS)
def test_malformed_files_are_read_in_full_or_refused_in_a_sentence(reader, monkeypatch):
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    for seed in range(SEEDS):
        readers.fuzz(reader, seed)


def lose(directory):
    raise readers.BadReader("3 pairs of 4 were read")


def stumble(directory):
    raise KeyError("source")


def blame_nobody(directory):
    raise CorpusError("something is wrong")


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (lose, "3 pairs 4"),
        (stumble, "KeyError 'source'"),
        (blame_nobody, "where"),
        (lambda directory: time.sleep(600), "Hang 1 s"),
    ],
)
def test_a_reader_that_loses_stumbles_or_hangs_is_noticed(monkeypatch, read, named):
    if named == "Hang 1 s":
        monkeypatch.setattr(readers, "LONGEST_WAIT", 1)
    reader = readers.READERS["TSV"]
    monkeypatch.setitem(readers.READERS, "TSV", readers.Reader(reader.make, reader.files, read))
    with refused(readers.BadReader, *named.split()):
        readers.fuzz("TSV", 0)


def test_another_seed_makes_another_file():
    whole = b"source\ttarget\na\tb\n" * 5
    made = {readers.malformed(whole, random.Random(seed), ".tsv") for seed in range(200)}
    assert len(made) > 150 and readers.malformed(whole, random.Random(3), ".tsv") in made
