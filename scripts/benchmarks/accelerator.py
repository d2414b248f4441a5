"""Shows on this machine's accelerator what the package does there, in one command of at most ten minutes.

    python -m scripts.benchmarks.accelerator

It runs the tests of devices, trains `cmudict` for 500 steps, measures training and decoding of a base
model beside what a user would use instead, on made-up text, and trains in two processes where there are two devices.
Each part is a process of its own; one that fails is reported, and the others go on. Prints a record.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from scripts.benchmarks.made_up import save_model, write_text

# In pairs: CTranslate2 needs libraries that a machine may lack.
DECODING = (("live-float16", "marian-float16"), ("live-float16", "ctranslate2-float16"))
VOCABULARY, PAIRS, WORDS = 37_000, 30_000, 40_000


def main(words: Sequence[str] | None = None) -> None:
    """Runs the parts that were asked for, and prints the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=int, default=240, help="most for one command; ten minutes for all")
    arguments, end = parser.parse_args(words), time.monotonic() + 590
    print(heading(), flush=True)
    with tempfile.TemporaryDirectory() as directory:
        for name in arguments.parts:
            print(f"\n## {name.capitalize()}", flush=True)
            for command in PARTS[name](Path(directory)):
                print(f"\n`{' '.join(command)}`\n", flush=True)
                seconds = min(arguments.seconds, max(0, end - time.monotonic()))
                print(output_of(command, Path(directory), seconds), flush=True)


def heading() -> str:
    """Returns the device, the date and the commit; the measurements name their versions."""
    commit = subprocess.run(["git", "log", "-1", "--format=%h"], capture_output=True, text=True).stdout.strip()
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        device = f"{len(names)} × {names[0]}, CUDA {torch.version.cuda}"
    else:
        device = f"no CUDA, so the device is {torch.accelerator.current_accelerator() or 'the processor'}"
    return f"# {device}\n\n{datetime.now(UTC):%Y-%m-%d}, commit {commit or 'unknown'}"


def output_of(command: Sequence[str], directory: Path, seconds: float) -> str:
    """Returns what a command prints, or the end of its errors, and how long it took."""
    start, words = time.perf_counter(), [argument.format(directory=directory) for argument in command]
    # A group: contestants would outlive the command, and hold its pipes open.
    run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    try:
        text, errors = run.communicate(timeout=seconds)
        end = f", failed with the code {run.returncode}" * (run.returncode != 0)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as reason:
        os.killpg(run.pid, signal.SIGKILL)
        if isinstance(reason, KeyboardInterrupt):
            raise
        (text, errors), end = run.communicate(), ", and was not done"
    output = f"{text[-1500:]}{errors[-3000:]}" if end else text
    return f"{output.strip()}\n\n({time.perf_counter() - start:.0f} seconds{end})"


def tests(directory: Path) -> list[list[str]]:
    """Returns the command that runs the tests of devices."""
    return [[sys.executable, "-m", "pytest", "-q", "tests/device"]]


def quickstart(directory: Path) -> list[list[str]]:
    """Returns the commands that train `cmudict` for 500 steps, and give its figures."""
    train = [sys.executable, "-m", "vanilla_transformer", "train", "cmudict", "--max-steps", "500"]
    return [[*train, "--output", "{directory}/quickstart"], ["cat", "{directory}/quickstart/summary.json"]]


def training(directory: Path) -> list[list[str]]:
    """Returns the commands that measure training of base in steps of 25,000 tokens: in half precision and float32."""
    write_text(directory, PAIRS, WORDS, length=25)
    sides = ["{directory}/text.a", "{directory}/text.b", "--directory", "{directory}/base"]
    sizes = ["--preset", "base", "--vocab-size", str(VOCABULARY), "--batch-tokens", "25000", "--batches-per-step", "4"]
    turns = ["--steps", "20", "--warmup-steps", "10", "--repeats", "2"]
    command = [sys.executable, "-m", "scripts.benchmarks.train", *sides, *sizes, *turns]
    return [
        [*command, "--contestants", "ours", "marian-best"],
        [*command, "--contestants", "ours", "--precision", "float32"],
    ]


def decoding(directory: Path) -> list[list[str]]:
    """Returns the commands that measure decoding by a base model with random weights, to a fixed length."""
    write_text(directory, PAIRS, WORDS, length=25)
    save_model(directory, VOCABULARY)
    device = ["--device", "cuda"] * torch.cuda.is_available()
    command = [sys.executable, "-m", "scripts.benchmarks.decode", "{directory}/model", "{directory}/text.a", *device]
    cases = ["--case", "tokens each", "--sentences", "32", "512", "--singles", "4", "--repeats", "3"]
    return [[*command, *cases, "--contestants", *names] for names in DECODING]


def processes(directory: Path) -> list[list[str]]:
    """Returns the command that trains in two processes; none with fewer than two devices."""
    if torch.cuda.device_count() < 2:
        print("\nThere are no two devices.")
        return []
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    train = ["-m", "vanilla_transformer", "train", "cmudict", "--max-steps", "200", "--output", "{directory}/two"]
    return [[*launcher, *train]]


PARTS = {part.__name__: part for part in (tests, quickstart, decoding, training, processes)}


if __name__ == "__main__":
    main()
