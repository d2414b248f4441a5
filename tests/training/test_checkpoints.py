"""Checkpoints hold the whole state, are complete or absent, and are kept as long as the run needs them."""

import copy
import errno
import random

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from faults import failing_disk, small_files
from refusals import refused

from vanilla_transformer.errors import RunError
from vanilla_transformer.training.checkpoints import (
    Progress,
    checkpoints_to_average,
    delete_checkpoints_after,
    latest_checkpoint,
    list_checkpoints,
    prune_checkpoints,
    save_checkpoint,
    save_plain_weights,
)


class Run:
    """A model with an optimizer and a schedule."""

    def __init__(self, directory):
        torch.manual_seed(0)
        self.directory, self.said = directory / "checkpoints", []
        self.accelerator = Accelerator(cpu=True)
        self.model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=1.0, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 0.1 / (done + 1))
        _, self.optimizer, self.schedule = self.accelerator.prepare(self.model, optimizer, schedule)
        save_plain_weights(self.accelerator, self.model)

    def step(self):
        self.model(torch.rand(4, 3)).square().sum().backward()
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()

    def save(self, *steps):
        for step in steps:
            save_checkpoint(self.accelerator, self.directory, Progress(step=step, window_loss=0.1 + step))
        return self.directory / f"step-{steps[-1]:08d}"

    def state(self):
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict(), self.schedule.state_dict()))

    def latest(self):
        return latest_checkpoint(self.directory, self.said.append)

    def kept(self):
        checkpoints = list_checkpoints(self.directory, self.said.append)
        assert all(checkpoint.damage() is None for checkpoint in checkpoints)
        return [(checkpoint.step, checkpoint.resumable) for checkpoint in checkpoints]


@pytest.fixture
def run(tmp_path):
    started = Run(tmp_path)
    yield started
    started.accelerator.free_memory()


def test_a_checkpoint_brings_back_weights_optimizer_schedule_and_random_states(run):
    run.step()
    run.save(1)
    then = run.state()
    drawn = random.random(), np.random.rand(), torch.rand(())
    for _ in range(3):
        run.step()
    run.save(4)
    delete_checkpoints_after(run.directory, 1)
    checkpoint = run.latest()
    assert checkpoint.progress == Progress(step=1, window_loss=1.1)
    run.accelerator.load_state(str(checkpoint.path))
    torch.testing.assert_close(run.state(), then, rtol=0, atol=0)
    assert (random.random(), np.random.rand(), torch.rand(())) == drawn


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: (path / "optimizer.bin").write_bytes(b"moments"), "optimizer.bin has 7 bytes instead of"),
        (lambda path: (path / "model.safetensors").unlink(), "model.safetensors cannot be read"),
        (lambda path: (path / "checkpoint.json").unlink(), "its checkpoint.json is missing or damaged"),
        (lambda path: (path / "checkpoint.json").write_text("[]"), "its checkpoint.json is missing or damaged"),
        (lambda path: path.rename(path.with_name("step-00000013")), "its checkpoint.json is missing or damaged"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_the_reason(run, harm, reason):
    harm(run.save(3, 12))
    assert run.latest().step == 3
    assert len(run.said) == 1 and "Skipped checkpoint step-0000001" in run.said[0] and reason in run.said[0]


def test_without_a_whole_checkpoint_nothing_is_deleted_and_the_user_is_told(run):
    (run.save(3) / "optimizer.bin").unlink()
    with refused(RunError, "None of the checkpoints", "--output"):
        run.latest()
    assert run.directory.joinpath("step-00000003", "model.safetensors").exists()


def test_unfinished_checkpoints_are_ignored_and_removed(run):
    run.save(3)
    partial = run.directory / ".partial-step-00000012"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"weig")
    (run.directory / "step-by-step").mkdir()
    assert run.latest().step == 3 and run.said == []
    delete_checkpoints_after(run.directory, 3)
    assert sorted(path.name for path in run.directory.iterdir()) == ["step-00000003", "step-by-step"]


def test_pruning_keeps_the_last_ones_for_the_mean_and_two_to_go_on_from(run):
    for step in (2, 4, 6, 7, 8):
        run.save(step)
        prune_checkpoints(run.directory, save_steps=2, last_step=None, averaged=3)
    assert run.kept() == [(4, False), (6, False), (7, True), (8, True)]
    names = {path.name for path in (run.directory / "step-00000004").iterdir()}
    assert names == {"model.safetensors", "checkpoint.json"} and run.said == []


def test_a_checkpoint_that_a_signal_asked_for_does_not_count_in_the_mean(run):
    run.save(2, 4, 5, 6, 7)
    for last_step, steps in ((7, [4, 6, 7]), (None, [2, 4, 6])):
        averaged = checkpoints_to_average(run.directory, 2, last_step, 3, run.said.append)
        assert [one.step for one in averaged] == steps


def test_damaged_weights_are_left_out_of_the_mean(run):
    (run.save(2, 4) / "model.safetensors").write_bytes(b"cut")
    assert [one.step for one in checkpoints_to_average(run.directory, 2, 4, 2, run.said.append)] == [2]
    assert "step-00000004 is left out of the mean: model.safetensors has 3 bytes" in run.said[0]


@pytest.mark.parametrize("fault", [lambda: failing_disk(errno.EROFS), lambda: small_files(100)])
def test_a_failed_write_is_told_and_keeps_the_earlier_checkpoint(run, fault):
    run.save(1)
    with fault(), refused(RunError, "step 2", "cannot be written", "earlier checkpoints are intact"):
        run.save(2)
    assert [path.name for path in run.directory.iterdir()] == ["step-00000001"]
    assert run.latest().step == 1
