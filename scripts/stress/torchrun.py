"""Causes accidents under torchrun: kills or stops processes, times how long until all are gone, and restarts.

    python -m scripts.stress.torchrun DIRECTORY

Trains a tiny model by gloo. Without restarts all processes must be gone within the stated time, with a sentence and an
exit code other than 0; with restarts the weights must be those of an undisturbed run, bit for bit. Two torchruns on
this machine stand for two machines.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import tyro

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "tests" / "distributed" / "torchrun_worker.py"
SENTENCE = r"Another process of this run has died or hangs|failed \(exitcode: -9\)"


@dataclass
class Options:
    """Accidents to cause, and the directory for the runs."""

    directory: tyro.conf.Positional[Path]
    """Where the runs lie; made if it is not there."""
    accidents: list[str] = field(default_factory=lambda: list(ACCIDENTS))
    """Names of accidents."""


@dataclass
class Launch:
    """The torchruns of one run, and their output."""

    place: Path
    launchers: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self, accident: list[str], *options: str, **settings: object) -> "subprocess.Popen[bytes]":
        """Starts one more torchrun with this accident in its workers."""
        words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        command = [sys.executable, "-m", "torch.distributed.run", *options, str(WORKER), *accident, "train"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}
        with open(self.place / f"said-{len(self.launchers)}", "w") as said:
            launcher = subprocess.Popen(
                [*command, str(self.place.parent / "recipe.yaml"), "--output", str(self.place / "model"), *words],
                stdout=said,
                stderr=said,
                env=environment,
            )
        self.launchers.append(launcher)
        return launcher

    def said(self, number: int = 0) -> str:
        """Returns the output of a torchrun and its workers."""
        return (self.place / f"said-{number}").read_text()

    def wait_for(self, words: str, number: int = 0, seconds: float = 300) -> None:
        """Waits until they have written these words."""
        end = time.monotonic() + seconds
        while not re.search(words, self.said(number)):
            assert time.monotonic() < end, f"never said {words!r}: {self.said(number)[-2000:]}"
            time.sleep(0.05)

    def weights(self) -> bytes:
        """Returns the weights of the trained model."""
        return (self.place / "model" / "model.safetensors").read_bytes()


ONE = ["--standalone", "--nproc-per-node", "2"]
NOTHING = ["0", "0", "SIGCONT"]
SETTINGS = {"dropout": 0.3, "save_steps": 2}


def killed(place: Path, rank: str) -> str:
    """Kills a rank by SIGKILL: all processes must be gone within 30 s after its checkpoint."""
    launch = Launch(place)
    launcher = launch.start([rank, "5", "SIGKILL"], *ONE, **SETTINGS)
    launch.wait_for("step 5 ")
    began = time.monotonic()
    code = launcher.wait(60)
    seconds = time.monotonic() - began
    assert code != 0 and seconds < 30 and re.search(SENTENCE, launch.said()), launch.said()
    return f"all gone {seconds:.1f} s after the step before, exit code {code}"


def stopped(place: Path) -> str:
    """Stops a rank by SIGSTOP, with a limit of 10 s."""
    launch = Launch(place)
    options = [*ONE, "--shutdown-timeout", "5"]
    launcher = launch.start(["1", "5", "SIGSTOP"], *options, **SETTINGS, process_timeout=10)
    launch.wait_for("step 5 ")
    began = time.monotonic()
    code = launcher.wait(120)
    assert code != 0 and "has died or hangs" in launch.said(), launch.said()
    return f"all gone {time.monotonic() - began:.1f} s after the step before, exit code {code}"


def orphaned(place: Path) -> str:
    """Kills torchrun by SIGKILL: no worker may be left after 5 s."""
    launch = Launch(place)
    launcher = launch.start(["1", "5", "SIGSTOP"], *ONE, **SETTINGS)
    launch.wait_for("step 5 ")
    workers = [one for one in psutil.Process(launcher.pid).children() if str(WORKER) in one.cmdline()]
    launcher.kill()
    launcher.wait()
    began = time.monotonic()
    assert len(workers) == 2 and not psutil.wait_procs(workers, timeout=5)[1]
    return f"no worker {time.monotonic() - began:.1f} s later"


def restarted(place: Path, rank: str) -> str:
    """Restarts with `--max-restarts 2`: the weights must be those of an undisturbed run, bit for bit."""
    weights = []
    for name, accident in (("alone", NOTHING), ("killed", [rank, "5", "SIGKILL"])):
        launch = Launch(place / name)
        launch.place.mkdir()
        (launch.place.parent / "recipe.yaml").write_bytes((place.parent / "recipe.yaml").read_bytes())
        assert launch.start(accident, *ONE, "--max-restarts", "2", **SETTINGS).wait(300) == 0, launch.said()
        weights.append(launch.weights())
    assert "Going on from the checkpoint of step 4" in launch.said()
    assert weights[0] == weights[1], "other weights than undisturbed"
    return "the same weights, bit for bit"


def fewer_machines(place: Path) -> str:
    """Runs two torchruns with `--nnodes 1:2`, and kills the second and its worker: the first must continue alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = Launch(place)
    options = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    options += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "x", "--rdzv-conf", "last_call_timeout=15"]
    first = launch.start(["1", "5", "SIGSTOP"], *options, **SETTINGS, process_timeout=10)
    time.sleep(1)
    second = launch.start(["1", "5", "SIGSTOP"], *options, **SETTINGS, process_timeout=10)
    launch.wait_for("step 5 ")
    began = time.monotonic()
    for process in [*psutil.Process(second.pid).children(), psutil.Process(second.pid)]:
        process.kill()
    launch.wait_for("The number of processes was 2 and is now 1")
    assert first.wait(300) == 0, launch.said()
    launch.weights()
    return f"went on alone from step 4, finished {time.monotonic() - began:.0f} s after the loss"


ACCIDENTS: dict[str, Callable[[Path], str]] = {
    "rank 0 killed": lambda place: killed(place, "0"),
    "rank 1 killed": lambda place: killed(place, "1"),
    "rank 1 stopped": stopped,
    "torchrun killed": orphaned,
    "rank 0 killed, restarted": lambda place: restarted(place, "0"),
    "rank 1 killed, restarted": lambda place: restarted(place, "1"),
    "a machine of 1:2 lost": fewer_machines,
}


def main(options: Options) -> None:
    """Prints a row for each accident, and fails at the first wrong result."""
    sys.path.insert(0, str(ROOT / "tests"))
    from launching import write_recipe

    options.directory.mkdir(parents=True, exist_ok=True)
    print("| accident | came out |\n|---|---|")
    for name in options.accidents:
        place = options.directory.resolve() / re.sub(r"\W+", "-", name)
        place.mkdir()
        write_recipe(options.directory.resolve())
        print(f"| {name} | {ACCIDENTS[name](place)} |", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main(tyro.cli(Options, description=__doc__))
