"""Trains and translates for a long time at once, and measures whether the memory of both stays constant."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from vanilla_transformer.checkpointing.store import list_checkpoints

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
SIZES = "--preset tiny --d-model 32 --d-ff 64 --num-heads 2 --encoder-layers 1 --decoder-layers 1 --vocab-size 280"
STEPS = "--batch-tokens 400 --batches-per-step 2 --save-steps 10 --eval-steps 10 --log-steps 5 --warmup-steps 100"
ENDLESS = 1_000_000_000
# Libraries fill their caches first; memory that grows after this share of the time is a leak.
WARM_UP = 0.25
COLUMNS = 6


def main() -> None:
    """Soaks for the given minutes and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="for the corpus, the models and samples.json; must be empty")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two looks at the memory")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    print(soak(arguments.directory.absolute(), arguments.minutes * 60, arguments.every))


@dataclass
class Memory:
    """Samples of a process: seconds since the start, resident bytes, threads and open files."""

    seconds: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def look(self, process: int, seconds: float) -> None:
        """Adds a sample of the process."""
        status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        self.seconds.append(seconds)
        self.resident.append(1024 * int(status["VmRSS"].split()[0]))
        self.threads.append(int(status["Threads"]))
        self.files.append(len(os.listdir(f"/proc/{process}/fd")))

    def growth(self) -> tuple[float, float]:
        """Returns bytes per hour after the warm-up: by least squares, and as the median slope between any two samples.

        Memory that is taken and released again affects the first, but hardly the second; a leak affects both.
        """
        warm = np.array(self.seconds) >= WARM_UP * self.seconds[-1]
        hours, resident = np.array(self.seconds)[warm] / 3600, np.array(self.resident, dtype=float)[warm]
        first, second = np.triu_indices(len(hours), k=1)
        slopes = (resident[second] - resident[first]) / (hours[second] - hours[first])
        return float(np.polyfit(hours, resident, 1)[0]), float(np.median(slopes))


def soak(directory: Path, seconds: float, every: float) -> str:
    """Makes a model, lets one process train and one translate without end, ends both, and returns the tables."""
    options = [*write_pairs(directory, 2000), *SIZES.split(), *STEPS.split()]
    said = directory / "said.txt"
    if _command(said, "train", *options, "--max-steps", "100", "--output", str(directory / "model")).wait():
        raise SystemExit(f"There is no model to translate with: {said.read_text()}")
    training = _command(said, "train", *options, "--max-steps", str(ENDLESS), "--output", str(directory / "endless"))
    translating = _command(said, "translate", str(directory / "model"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    lines = _Lines(translating)
    memories = {"training": Memory(), "translation": Memory()}
    start = time.monotonic()
    while (passed := time.monotonic() - start) < seconds:
        for memory, process in zip(memories.values(), (training, translating), strict=True):
            if process.poll() is not None:
                raise SystemExit(
                    f"A process ended with the code {process.returncode} after {passed:.0f} s: see {said}."
                )
            memory.look(process.pid, passed)
        time.sleep(every)
    training.send_signal(signal.SIGTERM)
    lines.end()
    endings = training.wait(), translating.wait()
    (directory / "samples.json").write_text(json.dumps({name: vars(memory) for name, memory in memories.items()}))
    done = f"{_training_done(directory / 'endless')}; {lines.sent:,} lines sent and {lines.received:,} received"
    return f"{table(memories)}\n\n{done}; exit codes {endings[0]} and {endings[1]}."


def table(memories: dict[str, Memory]) -> str:
    """Formats memory over time and its growth as Markdown."""
    last = max(memory.seconds[-1] for memory in memories.values())
    ends = [last * (number + 1) / COLUMNS for number in range(COLUMNS)]
    heads = " | ".join(f"to {end / 60:.3g} min" for end in ends)
    rows = [
        f"| MB resident, mean | {heads} | MB/h, least squares | MB/h, median | threads | files |",
        "|---" * (COLUMNS + 5) + "|",
    ]
    for name, memory in memories.items():
        seconds, resident = np.array(memory.seconds), np.array(memory.resident) / 1e6
        parts = [resident[(seconds > end - last / COLUMNS) & (seconds <= end)] for end in ends]
        means = " | ".join(f"{part.mean():.1f}" if len(part) else "" for part in parts)
        growth = " | ".join(f"{value / 1e6:+.2f}" for value in memory.growth())
        threads, files = (f"{min(counts)} to {max(counts)}" for counts in (memory.threads, memory.files))
        rows.append(f"| {name} | {means} | {growth} | {threads} | {files} |")
    return "\n".join(rows)


def write_pairs(directory: Path, number: int) -> list[str]:
    """Writes sentences and their words in reverse order as pairs; returns the options that name them."""
    draw, options = random.Random(0), []
    for name, size in (("train", number), ("dev", max(number // 20, 1))):
        sentences = list(_sentences(draw, size))
        paths = [directory / f"{name}.en", directory / f"{name}.de"]
        for path, order in zip(paths, (1, -1), strict=True):
            path.write_text("".join(" ".join(sentence[::order]) + "\n" for sentence in sentences))
        options += [f"--{name}", *map(str, paths)]
    return options


def _sentences(draw: random.Random, number: int) -> Iterator[list[str]]:
    for _ in range(number):
        yield [draw.choice(WORDS) for _ in range(draw.randint(1, 8))]


class _Lines:
    """Sends lines to a process without end, and counts those that it returns."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.sent = self.received = 0
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=work, args=(stream,), daemon=True)
            for work, stream in ((self._send, process.stdin), (self._receive, process.stdout))
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stops sending, and returns when all sent lines are answered."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _send(self, stream: IO[bytes]) -> None:
        draw = random.Random(1)
        with suppress(BrokenPipeError), stream:
            while not self._ended.is_set():
                lines = [" ".join(sentence) for sentence in _sentences(draw, 100)]
                stream.write("".join(line + "\n" for line in lines).encode())
                self.sent += len(lines)

    def _receive(self, stream: IO[bytes]) -> None:
        with stream:
            for _ in stream:
                self.received += 1


def _command(
    said: Path, *words: str, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Starts a command of the package in its own process; appends its standard error to a file."""
    with said.open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "vanilla_transformer", *words], stdin=stdin, stdout=stdout, stderr=errors
        )


def _training_done(run: Path) -> str:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluations = sum("dev_loss" in record for record in records)
    newest, epochs = list_checkpoints(run / "checkpoints", print)[-1].step, records[-1]["epoch"]
    return f"{newest:,} steps, {epochs:,.0f} epochs, {newest // 10:,} checkpoints, {evaluations:,} evaluations"


if __name__ == "__main__":
    main()
