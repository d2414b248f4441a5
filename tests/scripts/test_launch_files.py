"""The files that start a run on several devices and machines, with stubs instead of the launchers."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tyro
import yaml
from launching import STEPS, Launch, command, write_recipe
from torch.distributed.run import parse_args

from vanilla_transformer.cli.translate import Translate

LAUNCH = Path(__file__).parents[2] / "scripts" / "launch"
RECORD = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["RECORD"], "a") as file:
    print(json.dumps({{"words": sys.argv[1:], "environment": dict(os.environ)}}), file=file)
"""
# As on two machines.
SRUN = """#!/usr/bin/env bash
set -euo pipefail
echo "$1" > "$RECORD.options"; shift
for task in 0 1; do SLURM_NODEID=$task "$@"; done
"""


@pytest.fixture
def start(tmp_path):
    """Runs a launch file with stubs of the launchers, and returns what they were given, once for each task."""
    bin = tmp_path / "bin"
    bin.mkdir()
    scontrol = '#!/bin/sh\necho "first-machine\nsecond-machine"\n'
    for name, text in {"torchrun": RECORD, "python": RECORD, "srun": SRUN, "scontrol": scontrol}.items():
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)

    def started(file, words, **environment):
        record = tmp_path / "record"
        variables = {"PATH": f"{bin}:{os.environ['PATH']}", "RECORD": str(record), **environment}
        result = subprocess.run(["bash", LAUNCH / file, *words], env=variables, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return [json.loads(line) for line in record.read_text().splitlines()]

    return started


WORDS = ["my recipe.yaml", "--train", "a b.en", "a b.de", "--output", "out"]


def test_one_machine_starts_a_process_for_each_of_eight_devices(start):
    (given,) = start("one_machine.sh", WORDS)
    understood = parse_args(given["words"])
    assert (understood.standalone, understood.nproc_per_node, understood.max_restarts) == (True, "8", 3)
    assert (understood.module, understood.training_script) == (True, "vanilla_transformer")
    assert understood.training_script_args == ["train", *WORDS]


def test_several_machines_meet_at_one_of_them(start):
    (given,) = start("machines.sh", WORDS, MAIN="gpu-a", MACHINES="2:3", PROCESSES="4", RESTARTS="5")
    understood = parse_args(given["words"])
    assert (understood.nnodes, understood.nproc_per_node, understood.max_restarts) == ("2:3", "4", 5)
    assert (understood.rdzv_backend, understood.rdzv_endpoint) == ("c10d", "gpu-a:29500")
    assert (understood.module, understood.training_script) == (True, "vanilla_transformer")
    assert understood.training_script_args == ["train", *WORDS]


@pytest.mark.parametrize("given", [{"MAIN": "gpu-a"}, {"MACHINES": "2"}])
def test_several_machines_need_a_number_and_a_place_to_meet(given):
    environment = {"PATH": os.environ["PATH"], **given}
    result = subprocess.run(["bash", LAUNCH / "machines.sh"], env=environment, capture_output=True, text=True)
    assert result.returncode != 0 and "machine" in result.stderr.splitlines()[-1]


def test_slurm_starts_one_torchrun_a_machine_and_ends_all_with_one(start, tmp_path):
    job = {"SLURM_JOB_ID": "4321", "SLURM_JOB_NODELIST": "first-machine,second-machine", "SLURM_JOB_NUM_NODES": "2"}
    machines = start("slurm.sbatch", WORDS, **job, SLURM_CPUS_PER_TASK="16", PROCESSES="4")
    assert (tmp_path / "record.options").read_text() == "--kill-on-bad-exit=1\n"
    assert len(machines) == 2
    for machine in machines:
        understood = parse_args(machine["words"])
        assert (understood.nnodes, understood.nproc_per_node, understood.max_restarts) == ("2", "4", 3)
        assert (understood.rdzv_endpoint, understood.rdzv_id) == ("first-machine:24321", "4321")
        assert understood.training_script_args == ["train", *WORDS]
        assert machine["environment"]["OMP_NUM_THREADS"] == "4"


def test_dry_run_of_eight_describes_each_and_changes_nothing(tmp_path):
    recipe, output = write_recipe(tmp_path), tmp_path / "model"
    places = [{"LOCAL_RANK": str(rank % 4), "LOCAL_WORLD_SIZE": "4"} for rank in range(8)]
    launch = Launch(8, [*command(recipe, output), "--dry-run"], tmp_path, environment=places)
    assert launch.codes() == [0] * 8, launch.printed_by_all()
    assert [launch.printed(rank) for rank in range(1, 8)] == [""] * 7

    said = launch.printed(0)
    assert f"reads: {output / 'prepared'} (120 pairs" in said and f"writes: {output} (the main process" in said
    blocks = said.split("\nprocess ")
    assert f"begins: after step 0 of {STEPS}" in blocks[0] and "up to 420 tokens a side in 3 batches" in blocks[0]
    for rank, block in enumerate(blocks[1:]):
        assert block.startswith(f"{rank} of 8: on {socket.gethostname()}, local rank {rank % 4}, cpu")
    for step in (1, 2, 3):
        whole, *parts = (sizes(block, step) for block in blocks)
        assert len(parts) == 8 and [sum(column) for column in zip(*parts, strict=True)] == whole
    assert not (output / "checkpoints").exists()

    again = Launch(1, command(recipe, output, max_steps=STEPS), tmp_path)
    assert again.codes() == [0] and "Skipped" not in again.printed(0)
    assert (output / "summary.json").exists()


def sizes(block, step):
    """Pairs, source tokens and target tokens of a step, as a block of a dry run tells them."""
    line = next(line for line in block.splitlines() if line.startswith(f"  step {step}: "))
    _, pairs, tokens = line.split(": ")[1].split(", ")
    return [int(word) for word in (pairs.split()[0], *tokens.removesuffix(" tokens").split(" + "))]


@pytest.mark.parametrize(("file", "kind"), [("one_machine.yaml", "MULTI_GPU"), ("sharded.yaml", "FSDP")])
def test_the_files_for_accelerate_are_what_it_reads(file, kind):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(LAUNCH / file))
    assert (config.distributed_type, config.num_processes, config.num_machines) == (kind, 8, 1)
    if kind == "FSDP":
        assert config.fsdp_config["fsdp_version"] == 2


@pytest.mark.parametrize(
    ("given", "command", "tasks"),
    [({}, "translate", "8"), ({"TASKS": "1000"}, "translate", "1000"), ({"COMMAND": "prepare"}, "prepare", "8")],
)
def test_a_slurm_array_does_a_task_each(start, given, command, tasks):
    words = ["my model", "in put", "--output", "out"]
    (task,) = start("tasks.sbatch", words, SLURM_ARRAY_TASK_ID="5", SLURM_ARRAY_TASK_MAX="7", **given)
    assert task["words"] == ["-m", "vanilla_transformer", command, *words, "--tasks", tasks, "--task", "5"]


def test_an_indexed_job_of_kubernetes_does_a_task_each():
    job = yaml.safe_load((LAUNCH / "tasks.kubernetes.yaml").read_text())
    spec = job["spec"]
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    container = spec["template"]["spec"]["containers"][0]
    script = 'vanilla-transformer() { printf \'%s\\n\' "$@"; }; exec() { "$@"; }; ' + container["args"][0]
    shown = subprocess.run(["bash", "-c", script], env={"JOB_COMPLETION_INDEX": "17"}, capture_output=True, text=True)
    words = shown.stdout.splitlines()
    command = tyro.cli(Translate, args=words[1:], config=(tyro.conf.OmitArgPrefixes,))
    assert words[0] == "translate" and (command.numbered.tasks, command.numbered.task_number) == (
        spec["completions"],
        17,
    )
    assert command.inputs == ("/shared/corpus.en",)
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
