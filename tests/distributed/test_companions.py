"""A run that starts its other processes itself: for its user it is one program."""

import json
import os
import signal
import sys
import time
from functools import partial

import psutil
import pytest
from faults import hook_update
from launching import PROCESSES, command, write_recipe
from refusals import refused

from vanilla_transformer.cli.program import main
from vanilla_transformer.distributed import companions
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.run_directory import RECIPE, processes_for


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """The file of a recipe of a tiny run."""
    return write_recipe(tmp_path_factory.mktemp("pairs"))


class Program:
    """The command in a process of its own, without any launcher; what it prints goes to a file."""

    def __init__(self, words, said, deed=None):
        self.said = said
        self.process = PROCESSES.Process(target=run, args=(words, said, os.pathsep.join(sys.path), deed))
        self.process.start()

    def code(self):
        self.process.join()
        return self.process.exitcode

    def companions(self):
        return [child for child in psutil.Process(self.process.pid).children() if "train" in child.cmdline()]


def run(words, said, path, deed):
    os.environ |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    printed = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    if deed is not None:
        deed()
    sys.exit(main(words))


def stopped():
    hook_update(2, lambda _: os.kill(os.getpid(), signal.SIGTERM), before=True)


def waiting(file):
    """Stays in the third step, with its companions, once it has said so."""

    def wait(_):
        file.touch()
        time.sleep(1000)

    hook_update(3, wait, before=True)


def kill_companion():
    def kill(_):
        [companion] = [child for child in psutil.Process().children() if "train" in child.cmdline()]
        companion.kill()

    hook_update(3, kill, before=True)


def test_one_command_trains_with_two_processes_stops_and_goes_on_with_two(recipe, tmp_path):
    output = tmp_path / "model"
    first = Program(command(recipe, output, processes=2, dropout=0.3), tmp_path / "first", stopped)
    assert first.code() == 143, first.said.read_text()
    assert first.said.read_text().count("Stopped after step 2") == 1
    assert load_recipe(output / RECIPE).run.processes == 2
    again = Program(command(recipe, output, dropout=0.3), tmp_path / "again")
    assert again.code() == 0, again.said.read_text()
    said = again.said.read_text()
    assert "Going on from the checkpoint of step 2." in said and "number of processes" not in said
    assert said.count("step 6 · epoch 1.50 · loss") == 1 and said.count(f"\n{output}\n") == 1, said
    assert json.loads((output / "summary.json").read_text())["processes"] == 2


def test_a_companion_that_is_killed_ends_the_run_with_one_sentence(recipe, tmp_path):
    program = Program(command(recipe, tmp_path / "model", processes=2), tmp_path / "said", kill_companion)
    assert program.code() == 1
    said = program.said.read_text()
    assert "error: Process 1 (of 2) was killed by SIGKILL: run the same command" in said, said
    assert said.count("error: ") == 1, said


@pytest.mark.skipif(sys.platform != "linux", reason="the system ends them on Linux alone")
def test_companions_end_with_the_first_process_however_it_ends(recipe, tmp_path):
    deed = partial(waiting, tmp_path / "waits")
    program = Program(command(recipe, tmp_path / "model", processes=2), tmp_path / "said", deed)
    while not (tmp_path / "waits").exists() and program.process.is_alive():
        time.sleep(0.05)
    [companion] = program.companions()
    program.process.kill()
    gone, alive = psutil.wait_procs([companion], timeout=60)
    assert gone and not alive, program.said.read_text()


def test_a_mistake_is_said_once(recipe, tmp_path, capfd):
    assert main(command(recipe, tmp_path / "model", processes=2, vocab_size=3)) != 0
    assert capfd.readouterr().err.count("error: ") == 1


def test_a_process_of_a_launcher_starts_no_others(monkeypatch):
    assert processes_for(Recipe.of(output="nowhere", processes=2)) == 2
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert processes_for(Recipe.of(output="nowhere", processes=2)) == 1


def test_processes_that_share_cores_are_for_a_cpu(accelerators):
    accelerators(1)
    assert processes_for(Recipe.of(output="nowhere")) == 1
    with refused(RecipeError, "torchrun --nproc-per-node"):
        processes_for(Recipe.of(output="nowhere", processes=2))


@pytest.mark.parametrize(
    ("threads", "gigabytes", "expected"),
    [(1, 64, 1), (2, 64, 2), (2, 3, 1), (3, 64, 1), (4, 64, 2), (5, 64, 2), (64, 64, 2), (64, 4, 2), (64, 3, 1)],
)
def test_processes_use_most_of_the_threads_and_fit_into_memory(
    monkeypatch, accelerators, threads, gigabytes, expected
):
    accelerators(0)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    memory = psutil.virtual_memory()._replace(total=gigabytes << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert companions.default_processes(None) == companions.default_processes(1000) == expected
    assert companions.default_processes(999) == 1
