"""Checkpoints are written beside the loop: what they hold, who waits for whom, and how a failure comes back."""

import copy
import random
import resource
import shutil
import threading

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from refusals import refused
from safetensors.torch import load_file

from vanilla_transformer.checkpointing import writer as checkpoint_writer
from vanilla_transformer.checkpointing.store import CheckpointError, Progress, latest_complete_checkpoint
from vanilla_transformer.checkpointing.writer import CheckpointWriter, StateCopy
from vanilla_transformer.distributed.torchrun import LostProcessError, explain_lost_processes


class Run:
    """A model with an optimizer and a schedule, and the writer of its checkpoints."""

    def __init__(self, directory):
        torch.manual_seed(0)
        self.directory, self.said, self.tidied = directory, [], 0
        self.accelerator = Accelerator(cpu=True)
        self.model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=1.0, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 0.1 / (done + 1))
        wrapped, self.optimizer, self.schedule = self.accelerator.prepare(self.model, optimizer, schedule)
        assert wrapped is self.model
        self.writer = CheckpointWriter(
            self.accelerator, self.model, self.optimizer, self.schedule, directory, self.said.append
        )

    def step(self):
        self.model(torch.rand(4, 3)).square().sum().backward()
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        random.random(), np.random.rand()

    def save(self, step):
        def tidy_up():
            self.tidied = step

        self.writer.save(Progress(step=step), tidy_up)

    def state(self):
        return copy.deepcopy(
            (self.model.state_dict(), self.optimizer.state_dict(), self.schedule.state_dict(), torch.get_rng_state())
        )

    def newest(self):
        return latest_complete_checkpoint(self.directory, self.said.append)


@pytest.fixture
def run(tmp_path):
    started = Run(tmp_path / "checkpoints")
    yield started
    started.accelerator.free_memory()


@pytest.fixture
def held(monkeypatch):
    """An event that the thread waits for before it writes anything large."""
    event, original = threading.Event(), checkpoint_writer._write_large

    def held_back(*arguments):
        assert event.wait(300)
        original(*arguments)

    monkeypatch.setattr(checkpoint_writer, "_write_large", held_back)
    yield event
    event.set()


def failing(error):
    def write(*_):
        raise error

    return write


def assert_same(mine, other):
    torch.testing.assert_close(mine, other, rtol=0, atol=0)


def test_checkpoint_holds_the_state_at_its_request_while_training_goes_on(run, held):
    run.step()
    run.save(1)
    then = run.state()
    drawn = random.random(), np.random.rand(), torch.rand(())
    for _ in range(3):
        run.step()
    assert run.newest() is None and run.tidied == 0
    held.set()
    run.writer.wait()
    assert run.newest().step == 1 and run.tidied == 1
    run.accelerator.load_state(str(run.newest().path))
    assert_same(run.state(), then)
    assert (random.random(), np.random.rand(), torch.rand(())) == drawn


def test_the_second_copy_is_made_where_the_first_was_and_is_as_true(run):
    for step in (1, 2):
        run.step()
        run.save(step)
        run.writer.wait()
        if step == 1:
            places = [buffer.data_ptr() for buffer in run.writer._copy._buffers]
    assert [buffer.data_ptr() for buffer in run.writer._copy._buffers] == places
    assert_same(load_file(run.newest().path / "model.safetensors"), dict(run.model.state_dict()))


def test_a_state_of_another_shape_gets_another_copy():
    made = StateCopy()
    for state in ({"a": torch.ones(2), "b": (3, None)}, {"a": torch.zeros(5), "b": [torch.ones(1), 4]}):
        copied = made.update(state)
        assert_same(copied, state)
        assert copied["a"].data_ptr() != state["a"].data_ptr()


def test_files_are_those_of_accelerate_and_equal(run, tmp_path):
    run.step()
    run.save(1)
    run.writer.wait()
    mine, library = run.newest().path, tmp_path / "library"
    run.accelerator.save_state(str(library))
    names = {path.name for path in library.iterdir()}
    assert {path.name for path in mine.iterdir()} == names | {"manifest.json", "progress.json"}
    assert_same(load_file(mine / "model.safetensors"), load_file(library / "model.safetensors"))
    for name in ("optimizer.bin", "scheduler.bin"):
        assert_same(torch.load(mine / name), torch.load(library / name))


def test_the_next_checkpoint_waits_for_the_one_before(run, held, monkeypatch):
    run.step()
    run.save(1)
    begun, original = threading.Event(), run.writer._begin

    def begin(unfinished):
        begun.set()
        assert run.newest().step == 1
        return original(unfinished)

    monkeypatch.setattr(run.writer, "_begin", begin)
    threading.Timer(0.2, held.set).start()
    run.save(2)
    run.writer.wait()
    assert begun.is_set() and run.newest().step == 2


def test_leaving_the_writer_waits_for_the_last_checkpoint(run, held):
    threading.Timer(0.2, held.set).start()
    with run.writer:
        run.save(1)
    assert run.newest().step == 1


@pytest.mark.parametrize("place", ["_write_large", "commit_checkpoint"])
def test_failed_write_is_reported_and_keeps_the_earlier_checkpoint(run, monkeypatch, place):
    run.save(1)
    run.writer.wait()
    monkeypatch.setattr(checkpoint_writer, place, failing(OSError(30, "Read-only file system")))
    run.save(2)
    with refused(CheckpointError, "step 2", "Read-only file system", "latest."):
        run.writer.wait()
    assert [path.name for path in run.directory.iterdir()] == ["step-00000001"]
    run.writer.wait()  # What was told once is not told again.


def test_a_failure_ends_the_loop_at_the_next_look_and_the_next_save(run, monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "_write_large", failing(OSError(28, "No space left on device")))
    for ask in (run.writer.raise_failure, lambda: run.save(2), lambda: run.writer.__exit__(None, None, None)):
        run.save(1)
        run.writer._thread.join()
        with refused(CheckpointError, "No space left"):
            ask()


def test_a_mistake_in_the_thread_is_no_silent_end_of_checkpoints(run, monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "_write_large", failing(KeyError("moments")))
    run.save(1)
    with refused(KeyError, "moments"):
        run.writer.wait()


def test_cause_of_the_stop_is_reported_before_a_failed_checkpoint(run, monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "_write_large", failing(OSError(28, "No space left on device")))
    with pytest.raises(ZeroDivisionError), run.writer:
        run.save(1)
        raise ZeroDivisionError
    assert len(run.said) == 1 and "No space left" in run.said[0]


def test_a_directory_that_is_deleted_meanwhile_is_told(run, held):
    run.save(1)
    shutil.rmtree(run.directory.parent)
    held.set()
    with refused(CheckpointError, "step 1", "No such file or directory"):
        run.writer.wait()


def test_without_memory_for_a_copy_the_loop_waits_and_that_is_said_once(run, monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "_allocate_like", failing(RuntimeError("can't allocate memory")))
    for step in (1, 2):
        run.step()
        run.save(step)
        assert run.newest().step == step
        assert_same(load_file(run.newest().path / "model.safetensors"), dict(run.model.state_dict()))
    assert [line for line in run.said if "synchronously" in line] == [
        "Checkpoints are written synchronously: no memory for a copy of the state (can't allocate memory)."
    ]


def test_the_reason_is_what_the_system_said_and_not_what_torch_made_of_it(run, monkeypatch):
    run.step()
    original = checkpoint_writer._write_large
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write(state, directory):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # Room for the weights, and not for the moments.
        try:
            original(state, directory)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    monkeypatch.setattr(checkpoint_writer, "_write_large", write)
    run.save(1)
    with refused(CheckpointError, "File too large"):
        run.writer.wait()


def test_the_system_is_asked_again_where_the_library_keeps_what_it_said(run, monkeypatch):
    run.step()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write(*_):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr(checkpoint_writer, "save_accelerator_state", write)
    try:
        with refused(CheckpointError, "File too large"):
            run.save(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(run.directory.iterdir())


@pytest.mark.parametrize("place", ["save_accelerator_state", "_write_large"])
def test_what_the_file_system_did_not_say_is_no_error_of_the_disk(run, monkeypatch, place):
    """Another rank that dies while a checkpoint is written, for one: torchrun has to start all again then."""
    run.save(1)
    run.writer.wait()
    said = RuntimeError("[../gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:21000")
    said.__cause__ = ConnectionResetError(104, "Connection reset by peer")
    monkeypatch.setattr(checkpoint_writer, place, failing(said))
    with refused(LostProcessError, "Connection closed by peer"), explain_lost_processes():
        run.save(2)
        run.writer.wait()
    assert run.newest().step == 1
