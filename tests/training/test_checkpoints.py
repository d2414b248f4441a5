"""Checkpoints are complete or absent, are kept as long as the run needs them, and their mean is a model (6.1)."""

import shutil
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator
from refusals import refused
from safetensors.torch import save_file

from vanilla_transformer.errors import RunError
from vanilla_transformer.training.checkpoints import (
    Progress,
    checkpoints_to_average,
    latest_checkpoint,
    list_checkpoints,
    load_average,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    save_plain_weights,
)


class Run:
    """A model with an optimizer."""

    def __init__(self, directory):
        self.directory = directory / "checkpoints"
        self.accelerator = Accelerator(cpu=True)
        model = torch.nn.Linear(3, 2)
        self.accelerator.prepare(model, torch.optim.Adam(model.parameters()))
        save_plain_weights(self.accelerator, model)

    def save(self, *steps):
        for step in steps:
            save_checkpoint(self.accelerator, self.directory, Progress(step=step))
        return self.directory / f"step-{steps[-1]:08d}"

    def latest(self):
        return latest_checkpoint(self.directory)

    def kept(self):
        return [(checkpoint.step, checkpoint.resumable) for checkpoint in list_checkpoints(self.directory)]


@pytest.fixture
def run(tmp_path):
    started = Run(tmp_path)
    yield started
    started.accelerator.free_memory()


@pytest.mark.parametrize("name", ["optimizer.bin", "model.safetensors", "random_states_0.pkl", "checkpoint.json"])
def test_a_damaged_checkpoint_is_named_and_without_it_the_one_before_is_there(run, name):
    latest = run.save(3, 12)
    (latest / name).write_bytes(b"moments")
    with refused(RunError, latest, "cannot be read", "delete"):
        load_checkpoint(run.accelerator, run.latest())
    shutil.rmtree(latest)
    load_checkpoint(run.accelerator, run.latest())
    assert run.latest().step == 3


def test_random_states_that_each_process_saved_must_be_there(run, monkeypatch):
    run.save(3)
    checkpoint = run.latest()
    monkeypatch.setattr(type(run.accelerator), "process_index", 1)
    load_checkpoint(run.accelerator, checkpoint)  # The run resumes with a second process.
    two = replace(checkpoint, progress=replace(checkpoint.progress, processes=2))
    with refused(RunError, "random_states_1.pkl"):
        load_checkpoint(run.accelerator, two)


def test_without_a_whole_checkpoint_nothing_is_deleted_and_the_user_is_told(run):
    (run.save(3) / "optimizer.bin").unlink()
    with refused(RunError, "None of the checkpoints", "optimizer.bin", "--output"):
        run.latest()
    assert run.directory.joinpath("step-00000003", "model.safetensors").exists()


def test_pruning_keeps_the_last_ones_for_the_mean_and_two_to_go_on_from(run):
    for step in (2, 4, 6, 7, 8):
        run.save(step)
        prune_checkpoints(run.directory, save_steps=2, last_step=None, averaged=3)
    assert run.kept() == [(4, False), (6, False), (7, True), (8, True)]
    names = {path.name for path in (run.directory / "step-00000004").iterdir()}
    assert names == {"model.safetensors", "checkpoint.json"}


def test_with_doubling_the_weights_of_ever_rarer_steps_stay(run):
    for step in range(2, 22, 2):
        run.save(step)
        prune_checkpoints(run.directory, save_steps=2, last_step=None, averaged=1, doubling=True)
    assert run.kept() == [(2, False), (4, False), (8, False), (16, False), (18, True), (20, True)]


def test_a_checkpoint_that_a_signal_asked_for_does_not_count_in_the_mean(run):
    run.save(2, 4, 5, 6, 7)
    for last_step, steps in ((7, [4, 6, 7]), (None, [2, 4, 6])):
        averaged = checkpoints_to_average(run.directory, 2, last_step, 3)
        assert [one.step for one in averaged] == steps


def weights(path, **tensors):
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    return path


def test_small_differences_of_large_numbers_are_not_lost(tmp_path):
    numbers = [torch.tensor([[1e8 + 8 * (number % 2)]]) for number in range(20)]
    mean = torch.nn.Linear(1, 1, bias=False)
    load_average(mean, [weights(tmp_path / str(n), weight=number) for n, number in enumerate(numbers)])
    assert mean.weight.double().item() == torch.tensor(1e8 + 4.0).double().item()


def test_weights_of_another_model_are_refused(tmp_path):
    model = torch.nn.Linear(2, 1, bias=False)
    good, broken = weights(tmp_path / "good", weight=torch.zeros(1, 2)), weights(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights")
    for other, words in (
        (weights(tmp_path / "wide", weight=torch.zeros(1, 3)), ["wide", "weight", "(1, 2)"]),
        (weights(tmp_path / "lacking"), ["lacking", "weight"]),
        (weights(tmp_path / "more", weight=torch.zeros(1, 2), bias=torch.zeros(1)), ["more", "bias"]),
        (broken, ["broken", "cannot be read"]),
    ):
        with refused(RunError, *words):
            load_average(model, [good, other])
    with refused(RunError, "checkpoints"):
        load_average(model, [])
