"""A short form of the harness that kills runs, and that it notices a run that does not survive."""

import random

import pytest

from scripts.stress import kill_training
from vanilla_transformer.checkpointing import store as checkpoints


def harness(directory, seed):
    return kill_training.Harness(directory, max_steps=40, draw=random.Random(seed), mounts=False)


def test_a_run_survives_what_is_done_to_it(tmp_path):
    short = harness(tmp_path, seed=3)
    short.survive(4, ["while-writing", "cut", "file-size", "manifest"])
    assert short.done.total() == 4 and short.finished >= 1
    assert "| together | 4 |" in short.table()
    assert not any((tmp_path / "run-0").glob("*"))


def test_a_run_that_goes_on_from_a_damaged_checkpoint_is_noticed(tmp_path, monkeypatch):
    # Both for the processes, which begin as copies of another one, and for what looks at them.
    monkeypatch.setattr(kill_training, "_train", trusting)
    with pytest.raises(kill_training.SurvivalError):
        harness(tmp_path, seed=1).survive(8, ["cut", "byte"])


def trusting(words, said):
    checkpoints.Checkpoint.damage = lambda self: None
    TRAIN(words, said)


TRAIN = kill_training._train
