"""Processes as a launcher starts them on one machine, for tests of runs of several processes."""

import faulthandler
import json
import multiprocessing
import os
import random
import signal
import socket
import sys

import torch

from vanilla_transformer.cli.program import main
from vanilla_transformer.data.preparation import StoredCorpus

# A server that has everything imported makes each process in milliseconds.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["vanilla_transformer.training.loop", "vanilla_transformer.cli.program"])

PAIRS, DEV_PAIRS, EPOCH, STEPS = 120, 20, 4, 6


def write_recipe(directory):
    """A file with the recipe of a run of an epoch and a half; the three batches of a step are no whole ones for each.

    Adam divides a gradient by its own size: only a large epsilon shows one that is a multiple of what it should be.
    """
    draw = random.Random(0)
    for name, count in (("train", PAIRS), ("dev", DEV_PAIRS)):
        sentences = [
            " ".join(draw.choices(["one", "two", "three", "four", "five", "six"], k=draw.randint(1, 6)))
            for _ in range(count)
        ]
        (directory / f"{name}.en").write_text("".join(f"{sentence}\n" for sentence in sentences))
        (directory / f"{name}.de").write_text("".join(f"{sentence[::-1]}\n" for sentence in sentences))
    values = {
        **{name: [str(directory / f"{name}.{side}") for side in ("en", "de")] for name in ("train", "dev")},
        "vocab_size": 280,
        "preset": "tiny",
        "d_model": 16,
        "d_ff": 32,
        "num_heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "dropout": 0.0,
        "precision": "float32",
        "batch_tokens": 420,
        "batches_per_step": 3,
        "max_steps": STEPS,
        "warmup_steps": 20,
        "save_steps": 2,
        "eval_steps": 3,
        "log_steps": 1,
        "average_checkpoints": 3,
        "metrics": [],
        "adam_epsilon": 1.0,
        "learning_rate_scale": 10.0,
    }
    (directory / "recipe.yaml").write_text(json.dumps(values))
    return directory / "recipe.yaml"


class Launch:
    """Processes that run the same command, as a launcher starts them on one machine."""

    def __init__(self, number, words, folder, *, environment=None, deed=None):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.processes = []
        for rank in range(number):
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
            variables |= environment[rank] if isinstance(environment, list) else environment or {}
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
        """Returns the output of a process."""
        return (self.folder / f"printed-{rank}").read_text()

    def printed_by_all(self):
        """Returns the output of all processes, for a test that fails."""
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
    """Has each process write down which pairs it reads."""
    rows, original = {"train": [], "dev": []}, StoredCorpus.rows

    def recording_rows(self, indices):
        rows[self.directory.name].extend(map(int, indices))
        return original(self, indices)

    StoredCorpus.rows = recording_rows
    return rows


def command(recipe, output, **options):
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return ["train", str(recipe), "--output", str(output), *words]
