"""Several processes at one run, on the CPU: the same training as one, and an end for all."""

import faulthandler
import json
import logging
import multiprocessing
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import psutil
import pytest
import small_tasks
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from browser import free_port
from refusals import refused
from safetensors.torch import load_file
from small_models import SIZES, figures, small_recipe
from small_tasks import labelled, lines, masked_lines, tagged  # noqa: F401

from vanilla_transformer import Translator
from vanilla_transformer.cli import main
from vanilla_transformer.data.preparation import StoredCorpus
from vanilla_transformer.errors import SettingError
from vanilla_transformer.machine import usable_cores
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe, Run
from vanilla_transformer.training import loop, processes
from vanilla_transformer.training.processes import processes_for

# A server that has everything imported makes each process in milliseconds.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["vanilla_transformer.training.loop", "vanilla_transformer.cli.program"])
PAIRS, DEV_PAIRS = 120, 10  # Of the small recipe.
LOST = r"error: Another process of this run is missing, has died or hangs: .* from the last checkpoint\. \("


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """The file of a run of an epoch and a half; the three batches of a step are no whole ones for each process.

    Adam divides a gradient by its own size: only a large epsilon shows one that is a multiple of what it should be.
    """
    directory = tmp_path_factory.mktemp("pairs")
    batches = {"batch_tokens": 320, "batches_per_step": 3, "average_checkpoints": 3, "eval_steps": 3, "log_steps": 1}
    rates = {"max_steps": 6, "warmup_steps": 20, "adam_epsilon": 1.0, "learning_rate_scale": 10.0}
    (directory / "recipe.yaml").write_text(small_recipe(directory, **batches, **rates, dropout=0.0).to_yaml())
    return directory / "recipe.yaml"


class Launch:
    """Processes that run the same command, as a launcher starts them on one machine."""

    def __init__(self, number, words, folder, *, threads=1, deed=None):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.processes = []
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": threads}
        for rank in range(number):
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, **shared}
            arguments = (rank, {name: str(value) for name, value in variables.items()}, words, folder, deed)
            self.processes.append(PROCESSES.Process(target=one_of_them, args=arguments))
        for process in self.processes:
            process.start()

    def codes(self):
        """The exit codes, once all have ended; a process that hangs prints where, is killed, and has the code -9."""
        for process in self.processes:
            process.join(timeout=300)
            if process.is_alive():
                os.kill(process.pid, signal.SIGUSR1)
                process.join(timeout=5)
            process.kill()
            process.join()
        return [process.exitcode for process in self.processes]

    def printed(self, rank):
        return (self.folder / f"printed-{rank}").read_text()

    def printed_by_all(self):
        return "\n".join(self.printed(rank) for rank in range(len(self.processes)))

    def rows(self, part):
        """For each process the pairs of a corpus that it has read."""
        return [json.loads((self.folder / f"rows-{rank}").read_text())[part] for rank in range(len(self.processes))]


def one_of_them(rank, variables, words, folder, deed):
    os.environ |= variables
    torch.set_num_threads(int(variables["OMP_NUM_THREADS"]))
    printed = os.open(folder / f"printed-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    faulthandler.register(signal.SIGUSR1)
    rows = record_rows()
    if deed is not None:
        deed(rank)
    code = main(words)
    (folder / f"rows-{rank}").write_text(json.dumps(rows))
    sys.stdout.flush()
    sys.exit(code)


def record_rows():
    """Has each process write down which pairs it reads, and which lines it translates to score the model."""
    rows, original, translate = {"train": [], "dev": [], "scored": []}, StoredCorpus.rows, Translator.translate

    def recording_rows(self, indices):
        rows[self.directory.name].extend(map(int, indices))
        return original(self, indices)

    def recording_translate(self, sources, *progress):
        rows["scored"].extend(sources if progress else [])
        return translate(self, sources, *progress)

    StoredCorpus.rows, Translator.translate = recording_rows, recording_translate
    return rows


def command(recipe, output, **options):
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return ["train", str(recipe), "--output", str(output), *words]


@pytest.fixture(scope="module")
def alone(recipe, tmp_path_factory):
    """The directory of the same run of one process."""
    folder = tmp_path_factory.mktemp("alone")
    launch = Launch(1, command(recipe, folder / "model"), folder)
    assert launch.codes() == [0], launch.printed(0)
    return folder / "model"


def assert_same_training(directory, alone):
    """The same losses and weights, but for the order of sums."""
    for together, expected in zip(figures(directory), figures(alone), strict=True):
        assert together == pytest.approx(expected, rel=1e-4)
    weights, expected = load_file(directory / "model.safetensors"), load_file(alone / "model.safetensors")
    for name in expected.keys() | weights.keys():
        torch.testing.assert_close(weights[name], expected[name], atol=1e-4, rtol=1e-3)


def test_two_processes_train_as_one_does_each_on_pairs_of_its_own(recipe, alone, tmp_path):
    # The main process prepares the text for both.
    deed = partial(elsewhere, place="training.inputs.read_corpus", value=fail)
    launch = Launch(2, command(recipe, tmp_path / "model"), tmp_path, deed=deed)
    assert launch.codes() == [0, 0], launch.printed_by_all()
    assert_same_training(tmp_path / "model", alone)
    assert launch.printed(1) == ""
    # Six steps are more than one epoch, and less than two.
    counts = Counter(row for rows in launch.rows("train") for row in rows)
    assert counts.keys() == {*range(PAIRS)} and set(counts.values()) == {1, 2}
    dev = launch.rows("dev")
    assert Counter(row for rows in dev for row in rows) == dict.fromkeys(range(DEV_PAIRS), 2)
    assert max(map(len, dev)) < 2 * DEV_PAIRS
    again = Launch(2, command(recipe, tmp_path / "model"), tmp_path)
    assert again.codes() == [0, 0], again.printed_by_all()
    assert "is finished, there is nothing to do" in again.printed(0) and again.printed(1) == ""


STEPS = {"batch_tokens": 40, "batches_per_step": 2, "max_steps": 3, "log_steps": 1, "eval_steps": 3, "save_steps": 3}
RATES = {"adam_epsilon": 1.0, "learning_rate_scale": 10.0, "max_grad_norm": 0.5, "dropout": 0.0}


@pytest.mark.parametrize("family", ["labelled", "tagged", "lines", "masked_lines", "mixture", "from", "bahdanau"])
def test_five_processes_train_each_family_as_one_in_steps_of_fewer_rows(family, request, recipe, alone, tmp_path):
    pairs, unset = load_recipe(recipe), dict.fromkeys((*SIZES, "vocab_size"))
    chosen = request.getfixturevalue(family) if hasattr(small_tasks, family) else pairs
    words = [word for part in ("train", "dev") for word in ("+", *pairs.data.corpora(part)[0].parts, "weight=2")]
    changes = {
        "mixture": {"train": words[1:]},
        "from": {**unset, "from_model": str(alone)},
        "bahdanau": {**unset, "architecture": "recurrent", "preset": "tiny", "attention": family, "vocab_size": 275},
    }.get(family, {"examples": ()})
    chosen = chosen.with_options(**STEPS, **RATES, **changes, precision="float32", metrics=None, average_checkpoints=1)
    (tmp_path / "recipe.yaml").write_text(chosen.to_yaml())
    for number in (1, 5):
        # The group ends when the model is there.
        ended = partial(open, tmp_path / f"{number}" / "summary.json", "rb", -1)
        deed = partial(elsewhere, place="training.processes.torch.distributed.destroy_process_group", value=ended)
        words = command(tmp_path / "recipe.yaml", tmp_path / f"{number}")
        launch = Launch(number, words, tmp_path / "folder", deed=deed)
        assert launch.codes() == [0] * number, launch.printed_by_all()
    assert_same_training(tmp_path / "5", tmp_path / "1")
    found, expected = (scores(tmp_path / f"{number}") for number in (5, 1))
    assert found and found == pytest.approx(expected, rel=1e-3)


def scores(directory):
    return {one["name"]: one["value"] for one in json.loads((directory / "summary.json").read_text())["scores"]["dev"]}


def test_each_process_scores_a_part_and_all_find_the_scores_of_one(recipe, alone, tmp_path):
    for number in (1, 3):
        model = shutil.copytree(alone, tmp_path / f"{number}")
        (model / "summary.json").unlink()
        launch = Launch(number, command(recipe, model, metrics="chrf"), tmp_path / "folder")
        assert launch.codes() == [0] * number, launch.printed_by_all()
    assert scores(tmp_path / "3") == scores(tmp_path / "1")
    parts = launch.rows("scored")
    sources = set((recipe.parent / "dev.en").read_text().splitlines())
    assert Counter(line for part in parts for line in part) == dict.fromkeys(sources, 1)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_killed_process_ends_all_and_the_same_command_goes_on_with_another_number(recipe, alone, tmp_path):
    launch = Launch(2, command(recipe, tmp_path / "model"), tmp_path, deed=partial(signalled, by=signal.SIGKILL))
    assert launch.codes() == [1, -signal.SIGKILL], launch.printed_by_all()
    assert re.search(LOST, launch.printed(0)), launch.printed_by_all()
    again = Launch(1, command(recipe, tmp_path / "model"), tmp_path)
    assert again.codes() == [0]
    assert "Resuming from the checkpoint at step 4." in again.printed(0)
    assert "The number of processes was 2 and is now 1" in again.printed(0)
    assert_same_training(tmp_path / "model", alone)


def signalled(rank, by):
    """Sends the second process a signal before its fifth step."""
    update = loop.TrainingLoop._update

    def acting_update(self, *arguments):
        if self.progress.step == 4 and rank == 1:
            os.kill(os.getpid(), by)
        update(self, *arguments)

    loop.TrainingLoop._update = acting_update


def elsewhere(rank, place, value):
    """The second process has something else in a place of the package."""
    if rank == 1:
        holder, _, name = place.rpartition(".")
        setattr(pkgutil.resolve_name(f"vanilla_transformer.{holder}"), name, value)


def fail(*arguments):
    """Raises an error; as on NCCL, a group ends when all end it."""
    torch.distributed.destroy_process_group = lambda group: torch.distributed.barrier()
    raise ValueError("the reason")


@pytest.mark.parametrize("place", ["loop.TrainingLoop._update", "finalize._help_to_score"])
def test_the_process_that_fails_says_why_whoever_would_wait_for_it(place, recipe, tmp_path):
    deed = partial(elsewhere, place=f"training.{place}", value=fail)
    launch = Launch(2, command(recipe, tmp_path / "model", process_timeout=20), tmp_path, deed=deed)
    assert launch.codes() == [1, 1], launch.printed_by_all()
    assert re.search(LOST, launch.printed(0)) and "error: the reason" in launch.printed(1), launch.printed_by_all()


def test_a_process_that_finds_another_text_is_refused(recipe, tmp_path):
    deed = partial(elsewhere, place="data.preparation.StoredCorpus._hash", value=str)
    launch = Launch(2, command(recipe, tmp_path / "model"), tmp_path, deed=deed)
    assert launch.codes() == [1, 1], launch.printed_by_all()
    assert "has different training data from the main process" in launch.printed(1), launch.printed_by_all()
    assert not (tmp_path / "model" / "checkpoints").exists()


def test_a_signal_that_the_program_around_python_handles_stays_with_it(monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *handler: pytest.fail("taken"))
    monkeypatch.setattr(signal, "getsignal", lambda signum: None)
    with processes.StopRequest():
        pass


class Program:
    """A command in a process of its own; unless told otherwise, in a folder whose files have the names of modules."""

    def __init__(self, folder, words, launcher=("-m", "vanilla_transformer"), place="here"):
        self.said = folder / "said"
        (folder / "here" / "vanilla_transformer").mkdir(parents=True, exist_ok=True)
        for name in ("random.py", "socket.py", "vanilla_transformer/__init__.py"):
            (folder / "here" / name).write_text("raise SystemExit('code of the folder was imported')\n")
        # Whoever launches them, the processes share the cores.
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        with self.said.open("w") as said:
            streams = {"stdout": said, "stderr": said, "env": environment}
            command = [sys.executable, "-P", *launcher, *words]
            # Whoever runs these tests may ignore SIGHUP.
            heeds = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
            self.process = subprocess.Popen(command, cwd=folder / place, preexec_fn=heeds, **streams)  # noqa: PLW1509

    def wait_until(self, condition):
        end = time.monotonic() + 300
        while not condition() and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)

    def workers(self):
        children = psutil.Process(self.process.pid).children()
        return {int(child.environ()["RANK"]): child for child in children if "RANK" in child.environ()}

    def code(self):
        try:
            return self.process.wait(300)
        finally:
            self.process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="workers end with their launcher on Linux alone")
def test_one_command_of_two_processes_goes_on_to_the_same_bytes_however_it_ended(recipe, tmp_path):
    longer = {"processes": 2, "dropout": 0.3, "max_steps": 60}
    undisturbed = Launch(
        2, command(recipe, tmp_path / "undisturbed", **longer), tmp_path, threads=max(1, usable_cores() // 2)
    )
    assert undisturbed.codes() == [0, 0], undisturbed.printed_by_all()
    output, words = tmp_path / "model", command(recipe, tmp_path / "model", **longer)

    def begin(step, **how):
        program = Program(tmp_path, words, **how)
        program.wait_until((output / "checkpoints" / f"step-{step:08d}").exists)
        return program

    first = begin(2)
    workers = first.workers().values()
    first.process.kill()
    gone, alive = psutil.wait_procs(workers, timeout=120)
    assert len(gone) == 2 and not alive, first.said.read_text()

    second = begin(8)
    second.workers()[1].kill()
    assert second.code() == 1
    said = second.said.read_text()
    assert "error: Process 1 of 2 was killed by SIGKILL: run the same command again" in said, said
    assert said.count("error: ") == 1 and "Traceback" not in said, said

    third = begin(16)
    third.process.terminate()
    assert third.code() == 143
    assert third.said.read_text().count("with everything saved: run the same command again") == 1

    fourth = begin(24)  # A closed terminal.
    fourth.process.send_signal(signal.SIGHUP)
    assert fourth.code() == 129
    assert fourth.said.read_text().count("with everything saved: run the same command again") == 1

    fifth = begin(32)
    for _ in range(3):
        fifth.process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert fifth.code() == 130
    assert "Traceback" not in fifth.said.read_text(), fifth.said.read_text()

    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2"]
    last = begin(40, launcher=(*torchrun, "-m", "vanilla_transformer"), place=".")
    last.workers()[1].kill()
    assert last.code() == 0, last.said.read_text()
    said = last.said.read_text()
    assert said.count("Resuming from the checkpoint at step") == 2 and said.count(f"\n{output}\n") == 1, said
    assert json.loads((output / "summary.json").read_text())["processes"] == 2
    assert figures(output) == figures(tmp_path / "undisturbed")
    expected = (tmp_path / "undisturbed" / "model.safetensors").read_bytes()
    assert (output / "model.safetensors").read_bytes() == expected


@pytest.mark.skipif(sys.platform != "linux", reason="workers end with their launcher on Linux alone")
def test_a_machine_that_is_lost_ends_the_other_and_both_go_on_to_the_same_bytes(recipe, tmp_path):
    longer = {"dropout": 0.3, "max_steps": 40}
    # Each torchrun takes the whole machine.
    undisturbed = Launch(2, command(recipe, tmp_path / "undisturbed", **longer), tmp_path, threads=usable_cores())
    assert undisturbed.codes() == [0, 0], undisturbed.printed_by_all()

    def two_machines():
        nodes = f"--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{free_port()}"
        for rank in (0, 1):
            torchrun = ["-m", "torch.distributed.run", *nodes.split(), "--rdzv-conf", f"is_host={1 - rank}"]
            words = command(recipe, tmp_path / "model", **longer)
            yield Program(tmp_path / f"{rank}", words, (*torchrun, "-m", "vanilla_transformer"), place=".")

    main, other = two_machines()
    main.wait_until((tmp_path / "model" / "checkpoints" / "step-00000008").exists)
    workers = other.workers().values()
    other.process.kill()
    assert main.code() == 1 and not psutil.wait_procs(workers, timeout=120)[1]
    assert re.search(LOST.removeprefix("error: "), main.said.read_text()), main.said.read_text()
    again = list(two_machines())
    assert [node.code() for node in again] == [0, 0], [node.said.read_text() for node in again]
    assert "Resuming from the checkpoint at step" in (tmp_path / "model" / "train.log").read_text()
    assert figures(tmp_path / "model") == figures(tmp_path / "undisturbed")
    expected = (tmp_path / "undisturbed" / "model.safetensors").read_bytes()
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == expected


def test_what_accelerate_has_in_its_default_configuration_changes_no_weights(recipe, alone, tmp_path, monkeypatch):
    (tmp_path / "accelerate").mkdir()
    choices = "distributed_type: MULTI_GPU, num_processes: 2, mixed_precision: bf16"
    configuration = f"{{{choices}, dynamo_config: {{dynamo_backend: EAGER}}}}"
    (tmp_path / "accelerate" / "default_config.yaml").write_text(configuration)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    by_accelerate = ("-m", "accelerate.commands.launch", "-m", "vanilla_transformer")
    program = Program(tmp_path, command(recipe, tmp_path / "model"), launcher=by_accelerate, place=".")
    assert program.code() == 0, program.said.read_text()
    assert json.loads((tmp_path / "model" / "summary.json").read_text())["processes"] == 2
    assert_same_training(tmp_path / "model", alone)


@pytest.mark.parametrize(
    "environment",
    [
        {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1"},
        {"ACCELERATE_USE_DEEPSPEED": "true", "RANK": "0"},
        {"WORLD_SIZE": "4", "RANK": "1"},
        {},
        {"RANK": ""},
    ],
)
def test_a_process_that_was_to_have_others_and_cannot_find_them_is_refused(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if len(environment) < 2:
        processes.check_launch()
    else:
        with refused(SettingError, "--multi_gpu --num_processes"):
            processes.check_launch()


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK"])
def test_a_number_of_a_process_without_the_number_of_all_is_rejected(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with refused(SettingError, name, "WORLD_SIZE", "torchrun"):
        processes.check_launch()


def test_several_processes_need_an_output_directory_as_one_does(monkeypatch, capsys):
    monkeypatch.setattr(processes, "launch", lambda *arguments: pytest.fail("launched"))
    assert main(["train", "--train", "a.en", "a.de", "--processes", "2"]) == 2
    assert "--output" in capsys.readouterr().err


def test_the_launcher_waits_for_a_step_and_leaves_logging_as_it_was(monkeypatch):
    seen = {}

    def elastic_launch(config, executable):
        seen.update(vars(config), disabled=logging.root.manager.disable)
        return lambda *words: None

    monkeypatch.setattr(processes, "elastic_launch", elastic_launch)
    processes.launch(2, Recipe.of(output="model", process_timeout=900.0))
    assert seen["shutdown_timeout"] == 900 and seen["disabled"] == logging.CRITICAL
    assert logging.root.manager.disable == logging.NOTSET


def test_what_another_accelerator_has_set_changes_nothing_and_stays(tmp_path):
    AcceleratorState._reset_state(reset_partial_state=True)
    Accelerator(cpu=True, mixed_precision="bf16")
    with processes.start_accelerator(Run(output=str(tmp_path))) as accelerator:
        assert accelerator.mixed_precision == "no"
    assert AcceleratorState().mixed_precision == "bf16"
    AcceleratorState._reset_state(reset_partial_state=True)


def test_one_command_uses_all_accelerators_unless_a_launcher_starts_it(monkeypatch):
    two = Recipe.of(output="nowhere", processes=2)
    assert processes_for(two) == 2
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert processes_for(two) == 1
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    assert processes_for(two) == 2
    assert processes_for(Recipe.of(output="nowhere", max_steps=1)) == (8 if sys.platform == "linux" else 1)
    with refused(SettingError, "processes", 9, 8):
        processes_for(Recipe.of(output="nowhere", processes=9))


def test_few_minutes_of_a_translator_are_those_of_one_process(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(processes, "own_threads", lambda: 2)
    monkeypatch.setattr(processes, "MIN_MEMORY", 0)

    def number(**given) -> int:
        return processes_for(Recipe.of(output="nowhere", **given))

    assert number(max_minutes=10) == number(max_steps=999) == number(max_minutes=5, max_steps=9_999) == 1
    assert (
        number()
        == number(max_minutes=11)
        == number(max_minutes=10, batch_tokens=4_096)
        == number(max_minutes=10, task="language-modeling")
        == (2 if sys.platform == "linux" else 1)
    )
