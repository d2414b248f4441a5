"""Kills a training run repeatedly, damages its checkpoints, fills its disk, and checks that it ends the same."""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from scripts.stress.cases import PROCESSES
from scripts.stress.soak import SIZES, write_pairs

STEPS = "--batch-tokens 400 --batches-per-step 2 --save-steps 5 --eval-steps 20 --log-steps 5 --warmup-steps 100"
LONGEST_WAIT = 300.0
DISK = 16 << 20
# A file in a checkpoint that names the damage; a checkpoint that is written again has none.
HARMED = "harmed.txt"


class SurvivalError(AssertionError):
    """A run that did not survive as it should have."""


def main() -> None:
    """Kills as often as asked for, and prints the damage and the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="for the corpus and the runs; must be empty or not exist")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--max-steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=tuple(MISCHIEF), nargs="+", default=list(MISCHIEF))
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    harness = Harness(arguments.directory.absolute(), arguments.max_steps, random.Random(arguments.seed))
    try:
        harness.survive(arguments.kills, arguments.only)
    finally:
        harness.unmount()
    print(harness.table())


@dataclass
class Attempt:
    """A process that trains in an output directory, until its end.

    Attributes:
        newest_whole: Step of the checkpoint from which it must resume, None for the beginning.
        harmed: Names of checkpoints that it must skip, each with the damage.
    """

    process: ForkServerProcess
    output: Path
    newest_whole: int | None
    harmed: dict[str, str]
    log_begins: int

    def code(self) -> int:
        """Returns the process's exit code; kills a process that hangs."""
        self.process.join(LONGEST_WAIT)
        if self.process.is_alive():
            self.process.kill()
            raise SurvivalError(f"The run in {self.output} hangs.")
        assert self.process.exitcode is not None
        return self.process.exitcode

    def said(self) -> str:
        """Returns the lines that it added to the log of the run."""
        log = self.output / "train.log"
        return log.read_bytes()[self.log_begins :].decode() if log.exists() else ""


@dataclass
class Harness:
    """Disturbs one run after the other until it is over, and compares it with an undisturbed run.

    Attributes:
        mounts: True if each run gets a small disk of its own, which can be filled; this needs root.
        done: Number of processes by the way they were ended.
        reasons: Number of skipped checkpoints by their damage.
        resumed: Number of processes that resumed from a checkpoint.
    """

    directory: Path
    max_steps: int
    draw: random.Random
    mounts: bool = True
    done: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    finished: int = 0
    seconds: float = 0.0

    def survive(self, kills: int, kinds: Sequence[str]) -> None:
        """Disturbs runs until this many processes were ended, by each kind of mischief equally often.

        Raises:
            SurvivalError: A run did not resume from its newest whole checkpoint, did not say so, ended with another
                model, or hung.
        """
        self._options = [*write_pairs(self.directory, 400), *SIZES.split(), *STEPS.split()]
        PROCESSES.Process(target=int).start()  # Starts the server from which all others are forked.
        multiprocessing.active_children()[0].join()
        start = time.monotonic()
        self._undisturbed = self._directory("undisturbed")
        if self._start(self._undisturbed).code() != 0:
            raise SurvivalError(f"The undisturbed run failed: {_read(self.directory / 'said.txt')}")
        # The beginning and the end of a run are as likely as any other time.
        self.seconds = time.monotonic() - start
        todo: list[str] = []
        while self.done.total() < kills:
            output = self._directory(f"run-{self.finished}")
            while True:
                if not todo:
                    todo = self.draw.sample(list(kinds), len(kinds))
                attempt = self._start(output)
                calm = self.done.total() >= kills
                harm = None if calm else MISCHIEF[todo.pop()](self, attempt)
                if self._check_end(attempt, harm) == 0:
                    break
            self._check_model(output)
            self.finished += 1
            shutil.rmtree(output)

    def table(self) -> str:
        """Formats the damage and the results as Markdown."""
        rows = [
            *((name, f"{count}") for name, count in sorted(self.done.items())),
            ("together", f"{self.done.total()}"),
            ("gone on from the newest whole checkpoint", f"{self.resumed}"),
            *((f"passed over: {reason}", f"{count}") for reason, count in sorted(self.reasons.items())),
            ("runs, all with the weights and figures of the undisturbed one, bit for bit", f"{self.finished}"),
        ]
        return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])

    def _directory(self, name: str) -> Path:
        """Returns a directory for a run, on a small disk of its own where the system allows it."""
        place = self.directory / name
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)]
        mounted = self.mounts and subprocess.run(mount, stderr=subprocess.DEVNULL).returncode == 0
        return place / "model" if mounted else place

    def unmount(self) -> None:
        """Unmounts the disks of runs that are over or failed, with everything on them."""
        for place in self.directory.iterdir():
            if os.path.ismount(place):
                subprocess.run(["umount", str(place)], check=True)

    def _start(self, output: Path) -> Attempt:
        log = output / "train.log"
        harmed = {mark.parent.name: mark.read_text() for mark in (output / "checkpoints").glob(f"step-*/{HARMED}")}
        whole = [step for name, step in _resumable(output / "checkpoints") if name not in harmed]
        words = [*self._options, "--max-steps", str(self.max_steps), "--output", str(output)]
        process = PROCESSES.Process(target=_train, args=(words, self.directory / "said.txt"))
        log_begins = log.stat().st_size if log.exists() else 0
        attempt = Attempt(process, output, max(whole, default=None), harmed, log_begins)
        process.start()
        return attempt

    def _check_end(self, attempt: Attempt, harm: str | None) -> int:
        """Counts the end of a process and checks its messages; returns 0 when the run is finished."""
        code, errors = attempt.code(), _read(self.directory / "said.txt")
        # Before and after the loop a run has nothing to save, and SIGTERM ends it like any process.
        expected = {0, 1, -signal.SIGKILL, 128 + signal.SIGTERM, -signal.SIGTERM}
        if code not in expected or "Traceback" in errors:
            raise SurvivalError(f"The run in {attempt.output} ended with the code {code}: {errors}")
        if code == 1 and not re.search(r"^vanilla-transformer: error: .*(No space left|too large).*\.$", errors, re.M):
            raise SurvivalError(f"A full disk was not told in a sentence: {errors}")
        self._check_beginning(attempt)
        if code != 0:
            assert harm is not None
            self.done[harm] += 1
            print(f"{self.done.total():3}: {harm}", file=sys.stderr, flush=True)
        return code

    def _check_beginning(self, attempt: Attempt) -> None:
        """Checks that the process resumed from the newest whole checkpoint and said so, if it came that far."""
        said = attempt.said()
        going_on = re.search(r"Going on from the checkpoint of step ([\d,]+)", said)
        step = int(going_on[1].replace(",", "")) if going_on else None
        trained = bool(re.search(r" step [\d,]+ · ", said))
        if not (going_on or trained):
            return
        if step != attempt.newest_whole:
            raise SurvivalError(f"The run in {attempt.output} had {attempt.newest_whole} to go on from: {said}")
        self.resumed += bool(going_on)
        for name, harm in attempt.harmed.items():
            if not re.search(rf"Skipped checkpoint {name}: .+\.", said):
                raise SurvivalError(f"Nothing was said of {name}, {harm}: {said}")
            self.reasons[harm] += 1

    def _check_model(self, output: Path) -> None:
        for name, read in (("model.safetensors", Path.read_bytes), ("metrics.jsonl", _figures)):
            if read(output / name) != read(self._undisturbed / name):
                raise SurvivalError(f"{output / name} is not what it is without disturbance.")


def _kill_at_any_time(harness: Harness, attempt: Attempt) -> str:
    attempt.process.join(harness.draw.uniform(0, harness.seconds))
    attempt.process.kill()
    return "killed at any time"


def _kill_while_writing(harness: Harness, attempt: Attempt) -> str:
    after = harness.draw.randint(1, 5)
    for _ in range(after):
        _wait_for(lambda: _unfinished(attempt.output), attempt.process)
        if after > 1:
            _wait_for(lambda: not _unfinished(attempt.output), attempt.process)
    _wait_for(lambda: _unfinished(attempt.output), attempt.process)
    time.sleep(harness.draw.uniform(0, 0.02))
    attempt.process.kill()
    return "killed while a checkpoint was written"


def _stop(harness: Harness, attempt: Attempt) -> str:
    _wait_for(lambda: (attempt.output / "checkpoints").exists(), attempt.process)
    attempt.process.join(harness.draw.uniform(0, harness.seconds / 2))
    attempt.process.terminate()
    return "stopped by SIGTERM"


def _fill_the_disk(harness: Harness, attempt: Attempt) -> str:
    """Fills the disk at a random time, or forbids files beyond a random size."""
    attempt.process.join(harness.draw.uniform(0, harness.seconds))
    place = attempt.output.parent
    if not os.path.ismount(place):
        return _limit_files(harness, attempt)
    ballast = place / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))
    attempt.code()
    ballast.unlink()
    return "disk full"


def _limit_files(harness: Harness, attempt: Attempt) -> str:
    limit = harness.draw.randrange(1 << 16)
    assert attempt.process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(attempt.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    attempt.code()
    return "files limited in size"


def _harming(what: str, harm: Callable[[Path, random.Random], None]) -> Callable[[Harness, Attempt], str]:
    """Returns mischief that kills the process and then damages the newest checkpoint, if another one stays whole."""

    def kill_and_harm(harness: Harness, attempt: Attempt) -> str:
        how = _kill_at_any_time(harness, attempt)
        code = attempt.code()
        directory = attempt.output / "checkpoints"
        whole = [directory / name for name, _ in _resumable(directory) if not (directory / name / HARMED).exists()]
        if code == 0 or len(whole) < 2:
            return how
        harm(whole[-1], harness.draw)
        (whole[-1] / HARMED).write_text(what)
        return f"{how}, then {what}"

    return kill_and_harm


def _cut_short(checkpoint: Path, draw: random.Random) -> None:
    file = draw.choice(sorted(checkpoint.iterdir()))
    os.truncate(file, draw.randrange(file.stat().st_size))


def _change_a_byte(checkpoint: Path, draw: random.Random) -> None:
    file = draw.choice([file for file in sorted(checkpoint.iterdir()) if file.name != "manifest.json"])
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)


def _remove_the_manifest(checkpoint: Path, draw: random.Random) -> None:
    (checkpoint / "manifest.json").unlink()


def _garble_the_manifest(checkpoint: Path, draw: random.Random) -> None:
    manifest = checkpoint / "manifest.json"
    data = manifest.read_bytes()
    place = draw.randrange(len(data))
    manifest.write_bytes(data[:place] + draw.randbytes(8) + data[place + 8 :])


def _remove_a_file(checkpoint: Path, draw: random.Random) -> None:
    draw.choice([file for file in sorted(checkpoint.iterdir()) if file.name != "manifest.json"]).unlink()


MISCHIEF: dict[str, Callable[[Harness, Attempt], str]] = {
    "any-time": _kill_at_any_time,
    "while-writing": _kill_while_writing,
    "stop": _stop,
    "disk": _fill_the_disk,
    "file-size": _limit_files,
    "cut": _harming("a file cut short", _cut_short),
    "byte": _harming("a byte of a file changed", _change_a_byte),
    "no-file": _harming("a file removed", _remove_a_file),
    "no-manifest": _harming("the manifest removed", _remove_the_manifest),
    "manifest": _harming("the manifest garbled", _garble_the_manifest),
}


def _train(words: list[str], said: Path) -> None:
    """Runs the command `train` in its process, with its output in a file."""
    import torch

    from vanilla_transformer.cli import main as command

    with said.open("wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
        os.dup2(file.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)
    raise SystemExit(command(["train", *words]))


def _resumable(checkpoints: Path) -> Iterator[tuple[str, int]]:
    """Yields names and steps of the checkpoints with optimizer state, oldest first."""
    for path in sorted(checkpoints.glob("step-*")):
        if (path / "optimizer.bin").exists():
            yield path.name, int(path.name.removeprefix("step-"))


def _unfinished(output: Path) -> bool:
    return any((output / "checkpoints").glob(".partial-*"))


def _wait_for(condition: Callable[[], bool], process: ForkServerProcess) -> None:
    while not condition() and process.is_alive():
        time.sleep(0.0005)


def _figures(metrics: Path) -> list[dict[str, float]]:
    """Reads metrics.jsonl without its times and speeds."""
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [
        {name: record[name] for name in record if name not in ("seconds", "tokens_per_second")} for record in records
    ]


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


if __name__ == "__main__":
    main()
