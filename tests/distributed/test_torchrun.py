"""Runs under torchrun: started again after an accident, and never left alone."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from launching import Launch, command, write_recipe

WORKER = Path(__file__).with_name("torchrun_worker.py")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """The file of a recipe of a tiny run."""
    return write_recipe(tmp_path_factory.mktemp("pairs"))


def torchrun(options, accident, words, said):
    """Starts torchrun with two processes; what all of them say goes to a file."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with open(said, "w") as file:
        return subprocess.Popen([*launcher, WORKER, *accident, *words], stdout=file, stderr=file, env=environment)


def test_restart_after_a_kill_ends_with_identical_weights(recipe, tmp_path):
    dropout = {"dropout": 0.3}
    undisturbed = Launch(2, command(recipe, tmp_path / "alone", **dropout), tmp_path / "launch")
    words, said = command(recipe, tmp_path / "model", **dropout), tmp_path / "said"
    run = torchrun(["--max-restarts", "2"], ["1", "5", "SIGKILL"], words, said)
    assert run.wait(300) == 0, said.read_text()
    assert undisturbed.codes() == [0, 0]
    assert "Going on from the checkpoint of step 4." in said.read_text()
    for name in ("model.safetensors", "checkpoints/step-00000006/model.safetensors"):
        assert (tmp_path / "model" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_a_mistake_is_said_once_and_not_tried_again(recipe, tmp_path):
    said = tmp_path / "said"
    run = torchrun(["--max-restarts", "2"], ["0", "0", "SIGTERM"], command(recipe, tmp_path / "m", vocab_size=3), said)
    assert run.wait(300) != 0
    assert said.read_text().count("vanilla-transformer: error: vocab_size must be at least 260") == 1, said.read_text()


def test_workers_end_with_their_torchrun(recipe, tmp_path):
    said = tmp_path / "said"
    run = torchrun([], ["1", "3", "SIGSTOP"], command(recipe, tmp_path / "model"), said)
    end = time.monotonic() + 300
    workers = []
    while not any(worker.status() == psutil.STATUS_STOPPED for worker in workers) and time.monotonic() < end:
        time.sleep(0.1)
        workers = [child for child in psutil.Process(run.pid).children() if str(WORKER) in child.cmdline()]
    assert len(workers) == 2, said.read_text()
    run.kill()
    run.wait()
    gone, alive = psutil.wait_procs(workers, timeout=120)
    assert not alive and len(gone) == 2, said.read_text()
