"""The files that start a run on several devices and machines, with stubs instead of the launchers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.run import parse_args

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


def test_the_file_for_accelerate_is_what_it_reads():
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(LAUNCH / "one_machine.yaml"))
    assert (config.distributed_type, config.num_processes, config.num_machines) == ("MULTI_GPU", 8, 1)
