"""`vanilla-transformer translate --tasks` and `join`: workers that die, one task by itself, engines, and refusals."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from refusals import refused
from small_models import save_translator

from vanilla_transformer.cli import main
from vanilla_transformer.extras.many_machines import engines
from vanilla_transformer.extras.many_machines.folder import TaskError
from vanilla_transformer.extras.many_machines.workers import Workers

SIZES = {"vocab_size": 260, "d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
SETTINGS = ["--num-beams", "2", "--max-length-beyond-source", "1", "--precision", "float32", "--device", "cpu"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_translator(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(capsys, monkeypatch, tmp_path, model):
    """Runs a command in a directory with a file `in`; its exit code and what it said on standard error."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    lines = ["".join(draw.choices("abcde ", k=draw.randint(0, 12))) for _ in range(40)]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines))

    def run(*words, settings=SETTINGS):
        words = ["translate", model, *words, *settings] if words[0] != "join" else words
        try:
            code = main([str(word) for word in words])
        except SystemExit as done:
            code = done.code
        return code, capsys.readouterr().err

    return run


def test_tasks_one_by_one_join_to_what_one_process_writes(run, tmp_path):
    assert run("in", "--output", "whole")[0] == 0
    for number in (1, 0, 2):
        assert run("in", "--output", "parts", "--tasks", 3, "--task", number) == (0, "")
    assert run("join", "parts", "--output", "joined") == (0, "")
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "whole").read_bytes()
    (tmp_path / "parts" / "part-00001.json").unlink()
    code, err = run("join", "parts", "--output", "again")
    assert code == 1 and "1 of 3 tasks in parts are missing: 1." in err and not (tmp_path / "again").exists()


def test_workers_that_are_killed_are_replaced_and_nothing_is_done_twice(run, tmp_path):
    assert run("in", "--output", "whole")[0] == 0
    killed = threading.Thread(target=kill_a_worker)
    killed.start()
    code, err = run("in", "--output", "parts", "--tasks", 8, "--workers", 2)
    killed.join()
    assert code == 0 and err.count("has died (signal 9): another takes its place.") == 1, err
    assert run("join", "parts", "--output", "joined")[0] == 0
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "whole").read_bytes()


def kill_a_worker():
    """Kills the first worker that this process starts."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        for child in psutil.Process().children():
            if "vanilla_transformer.extras.many_machines.task_worker" in child.cmdline():
                child.kill()
                return
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["in", "in", "--output", "out"], "numbered tasks: give --output DIR --tasks N"),
        (["in", "--output", "out", "--task", 1], "--task is for numbered tasks: give --output DIR --tasks N"),
        (["in", "--output", "out", "--workers", 2], "--workers is for numbered tasks"),
        (["in", "--tasks", 2], "--tasks needs files to read and an --output directory"),
        (["in", "--output", "out", "--tasks", 2, "--task", 2], "--task counts from 0 to 1"),
        (["in", "--output", "out", "--tasks", 2, "--resume"], "tasks always continue where they stopped"),
        (["in", "--output", "in", "--tasks", 2], "in is a file, but tasks need a directory"),
        (["none", "--output", "out", "--tasks", 2], "none does not exist"),
        (["in", "--output", "out", "--tasks", 2, "--engine-options", "a=b"], "--engine-options needs --engine"),
        (["in", "--output", "out", "--tasks", 2, "--engine", "slurm"], "--engine "),
    ],
)
def test_conflicting_options_are_refused_before_loading_a_model(run, tmp_path, words, message):
    code, err = run(*words)
    assert code in (1, 2) and message in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_another_model_or_setting_is_refused(run, tmp_path, model):
    assert run("in", "--output", "parts", "--tasks", 2, "--task", 0)[0] == 0
    other = [*SETTINGS[:1], "1", *SETTINGS[2:]]
    code, err = run("in", "--output", "parts", "--tasks", 2, "--task", 1, settings=other)
    assert code == 1 and "holds the tasks of another --num-beams (2, and now 1)" in err
    code, err = run("in", "--output", "parts", "--tasks", 2, "--workers", 1, settings=other)
    assert code == 1 and err.count("another --num-beams (2, and now 1)") == 1 and err.count("\n") == 1
    code, err = run("in", "--output", "parts", "--tasks", 3, "--task", 1)
    assert code == 1 and "another number of --tasks" in err


WORKER = """
import json, os, signal, sys
sys.stdin.readline()
for number in map(int, sys.stdin):
    answer = {{"number": number}}
    if number == {bad}:
        {deed}
    print(json.dumps(answer), flush=True)
"""


def workers(bad, deed, done):
    return Workers([sys.executable, "-c", WORKER.format(bad=bad, deed=deed)], ["one", "two"], done.append)


def test_a_task_that_kills_each_worker_is_named_and_the_others_are_done(capfd):
    done = []
    with refused(TaskError, "Task 1", "3 workers", "signal 9"):
        workers(1, "os.kill(os.getpid(), signal.SIGKILL)", done).run(range(4))
    assert sorted(answer["number"] for answer in done) in ([0, 2, 3], [0, 2], [0, 3])
    assert capfd.readouterr().err.count("another takes its place") == 2


def test_a_task_that_cannot_be_done_ends_all_with_its_sentence():
    with refused(TaskError, "Task 1", "no such line"):
        workers(1, "answer = {'error': 'Task 1: no such line'}", []).run(range(4))


def test_workers_listen_on_no_port_and_end_with_who_started_them(run, model, tmp_path):
    (tmp_path / "in").write_text("a b c d e\n" * 3000)
    words = [sys.executable, "-m", "vanilla_transformer", "translate", model, "in", "--output", "parts"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen([*map(str, words), "--tasks", "4", *SETTINGS], cwd=tmp_path, env=environment)
    children = []
    while not children and parent.poll() is None:
        time.sleep(0.02)
        children = psutil.Process(parent.pid).children()
    assert len(children) == 1
    for process in (psutil.Process(parent.pid), *children):
        assert not [one for one in process.net_connections("tcp") if one.status == "LISTEN"]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert not psutil.wait_procs(children, timeout=120)[1]


def test_datatroves_local_executor_does_what_is_left(run, tmp_path):
    pytest.importorskip("datatrove")
    assert run("in", "--output", "whole")[0] == 0
    assert run("in", "--output", "parts", "--tasks", 3, "--task", 1)[0] == 0
    before = (tmp_path / "parts" / "part-00001.txt").stat().st_mtime_ns
    assert run("in", "--output", "parts", "--tasks", 3, "--engine", "local")[0] == 0
    assert (tmp_path / "parts" / "part-00001.txt").stat().st_mtime_ns == before
    assert run("join", "parts", "--output", "joined")[0] == 0
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "whole").read_bytes()
    code, err = run("in", "--output", "parts", "--tasks", 3, "--engine", "slurm", "--engine-options", "tiem=1")
    assert code == 0  # Nothing is left to do.
    (tmp_path / "parts" / "part-00002.json").unlink()
    code, err = run("in", "--output", "parts", "--tasks", 3, "--engine", "slurm", "--engine-options", "tiem=1")
    assert code == 1 and "has no 'tiem': it has time, partition" in err
    code, err = run("in", "--output", "parts", "--tasks", 3, "--engine", "slurm", "--engine-options", "time=1:00:00")
    assert code == 1 and "--engine slurm needs partition=... as --engine-options" in err


def test_a_ray_cluster_of_two_nodes_does_the_tasks(run, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    pytest.importorskip("datatrove")
    from ray.cluster_utils import Cluster

    assert run("in", "--output", "whole")[0] == 0
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        options = ["--engine-options", "mem_per_cpu_gb=1"]
        assert run("in", "--output", tmp_path / "parts", "--tasks", 2, "--engine", "ray", *options)[0] == 0
        assert sum(node["Alive"] for node in ray.nodes()) == 2
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert run("join", "parts", "--output", "joined")[0] == 0
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "whole").read_bytes()


def test_without_datatrove_an_engine_says_what_to_install(run, missing):
    missing("datatrove.executor.local")
    code, err = run("in", "--output", "parts", "--tasks", 2, "--engine", "local")
    assert code == 1 and "pip install 'vanilla-transformer[cluster]'" in err and err.count("\n") == 1


def test_a_commands_line_for_a_worker_says_all_of_it():
    from vanilla_transformer.cli.decoding import Decoding
    from vanilla_transformer.cli.translate import Translate
    from vanilla_transformer.extras.many_machines.task_options import TaskOptions, as_line, from_line

    numbered, decoding = TaskOptions(3, engine_options=("x=1",)), Decoding(num_beams=2, device="cpu")
    command = Translate("m", ("a", "b"), output="o", numbered=numbered, decoding=decoding)
    assert from_line(as_line(command)) == command and "\n" not in as_line(command)


def test_slurm_node_finds_datatrove_beside_this_python():
    executor = pytest.importorskip("datatrove.executor.slurm").SlurmPipelineExecutor
    required = ["time=1:00:00", "partition=main"]
    settings = engines._settings(executor, "slurm", required)
    assert settings["env_command"] == f'export PATH={Path(sys.executable).parent}:"$PATH"'
    assert "env_command" not in engines._settings(executor, "slurm", [*required, "condaenv=mine"])
