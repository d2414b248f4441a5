"""Checkpoints are written beside the loop: what they hold, who waits for whom, and how a failure comes back."""

import copy
import errno
import random
import shutil
import threading
from concurrent.futures import wait

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from faults import failing_disk, small_files
from refusals import refused
from safetensors.torch import load_file

from vanilla_transformer.checkpointing.store import CheckpointError, Progress, latest_complete_checkpoint
from vanilla_transformer.checkpointing.writer import CheckpointWriter, StateCopy
from vanilla_transformer.distributed.torchrun import LostProcessError, explain_lost_processes


class Run:
    """A model with an optimizer and a schedule, and the writer of its checkpoints."""

    def __init__(self, directory, width=3):
        torch.manual_seed(0)
        self.directory, self.said, self.tidied = directory, [], 0
        self.accelerator = Accelerator(cpu=True)
        self.model = torch.nn.Linear(width, 2)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=1.0, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 0.1 / (done + 1))
        wrapped, self.optimizer, self.schedule = self.accelerator.prepare(self.model, optimizer, schedule)
        assert wrapped is self.model
        self.writer = CheckpointWriter(
            self.accelerator, self.model, self.optimizer, self.schedule, directory, self.said.append
        )

    def step(self):
        self.model(torch.rand(4, self.model.in_features)).square().sum().backward()
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
def held():
    """An event that the thread of the writer waits for before it does anything, as on a busy machine."""
    event = threading.Event()

    def wait(*_):
        if threading.current_thread().name.startswith("checkpoint"):
            assert event.wait(300)

    threading.setprofile(wait)
    yield event
    event.set()
    threading.setprofile(None)


class Unsaved:
    """Part of a state that cannot be saved."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error


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


def test_the_next_checkpoint_waits_for_the_one_before(run, held):
    run.step()
    run.save(1)
    threading.Timer(0.2, held.set).start()
    run.save(2)
    assert (run.directory / "step-00000001").is_dir()
    run.writer.wait()
    assert run.newest().step == 2


def test_leaving_the_writer_waits_for_the_last_checkpoint(run, held):
    threading.Timer(0.2, held.set).start()
    with run.writer:
        run.save(1)
    assert run.newest().step == 1


def test_failed_write_is_reported_and_keeps_the_earlier_checkpoint(run):
    run.save(1)
    run.writer.wait()
    with failing_disk(errno.EROFS), refused(CheckpointError, "step 2", "Read-only file system", "latest."):
        run.save(2)
        run.writer.wait()
    assert [path.name for path in run.directory.iterdir()] == ["step-00000001"]
    run.writer.wait()  # What was told once is not told again.


def test_a_failure_ends_the_loop_at_the_next_look_and_the_next_save(run):
    for ask in (run.writer.raise_failure, lambda: run.save(2), lambda: run.writer.__exit__(None, None, None)):
        with failing_disk(errno.ENOSPC):
            run.save(1)
            wait([run.writer._writing])
        with refused(CheckpointError, "No space left"):
            ask()


def test_a_mistake_in_the_thread_is_no_silent_end_of_checkpoints(run):
    run.optimizer.param_groups[0]["mistake"] = Unsaved(KeyError("moments"))
    run.save(1)
    with refused(KeyError, "moments"):
        run.writer.wait()


def test_cause_of_the_stop_is_reported_before_a_failed_checkpoint(run):
    with failing_disk(errno.ENOSPC), pytest.raises(ZeroDivisionError), run.writer:
        run.save(1)
        raise ZeroDivisionError
    assert len(run.said) == 1 and "No space left" in run.said[0]


def test_a_directory_that_is_deleted_meanwhile_is_told(run, held):
    run.save(1)
    shutil.rmtree(run.directory.parent)
    held.set()
    with refused(CheckpointError, "step 1", "No such file or directory"):
        run.writer.wait()


def test_without_memory_for_a_copy_the_loop_waits_and_that_is_said_once(run):
    run.step()
    # One number in the memory of the model and in its file, and more than any memory in a copy.
    run.optimizer.state[run.model.weight]["vast"] = torch.zeros(()).expand(1 << 50)
    for step in (1, 2):
        run.save(step)
        assert run.newest().step == step
        assert_same(load_file(run.newest().path / "model.safetensors"), dict(run.model.state_dict()))
        run.step()
    [line] = [line for line in run.said if "synchronously" in line]
    assert line.startswith("Checkpoints are written synchronously: no memory for a copy of the state (")


def test_the_reason_is_what_the_system_said_and_not_what_torch_made_of_it(tmp_path):
    run = Run(tmp_path / "checkpoints", width=2000)
    run.step()
    with small_files(25_000), refused(CheckpointError, "File too large"):  # Room for the weights, not for the moments.
        run.save(1)
        run.writer.wait()


def test_the_system_is_asked_again_where_the_library_keeps_what_it_said(run):
    run.step()
    with small_files(1000), refused(CheckpointError, "File too large"):  # Too small for the random states.
        run.save(1)
    assert not list(run.directory.iterdir())


@pytest.mark.parametrize("place", ["schedule", "optimizer"])
def test_other_errors_are_not_reported_as_errors_of_the_disk(run, place):
    """Another rank that dies while a checkpoint is written, for one: torchrun has to start all again then."""
    run.save(1)
    run.writer.wait()
    said = RuntimeError("[../gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:21000")
    said.__cause__ = ConnectionResetError(104, "Connection reset by peer")
    if place == "schedule":
        run.schedule.scheduler.mistake = Unsaved(said)
    else:
        run.optimizer.param_groups[0]["mistake"] = Unsaved(said)
    with refused(LostProcessError, "Connection closed by peer"), explain_lost_processes():
        run.save(2)
        run.writer.wait()
    assert run.newest().step == 1
