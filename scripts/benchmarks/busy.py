"""Measures the speed of training and decoding, alone and beside busy programs, for several thread settings.

    python -m scripts.benchmarks.busy    # the whole grid: hours
    python -m scripts.benchmarks.busy --workloads "train small" --neighbours 0 1 --rounds 1 --seconds 15    # minutes

A neighbour is an endless loop in a session of its own, like a program in another terminal: Linux divides the cores
among sessions first. The variants take turns within a round, and the median of the rounds counts.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks.made_up import save_model, write_text
from scripts.turns import spread
from vanilla_transformer.machine import usable_cores

ROOT = Path(__file__).parents[2]
# libgomp's default spin count: a variable that is set keeps this package from choosing its own.
SPINNING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "300000"}
VARIANTS = {
    "spinning threads": (SPINNING, 1),
    "one process": ({}, 1),
    "processes": ({}, usable_cores()),
}
SMALL = {"preset": "tiny", "encoder-layers": 3, "decoder-layers": 3, "batch-tokens": 2048}
BASE = {"preset": "base", "batch-tokens": 4096}
_LAYERS = {"encoder_layers": 3, "decoder_layers": 3}
SIZES: dict[str, dict[str, Any]] = {
    "small": {"vocab_size": 2000, "d_model": 128, "d_ff": 512, "num_heads": 4, **_LAYERS},
    "base": {"vocab_size": 37_000},
}
DECODERS = ("ours-float32", "ours-int8", "ctranslate2-float32", "ctranslate2-int8")
WORKLOADS = ("train small", "train base", "decode small", "decode base")
# Seconds within which the first steps must be done; a slower run counts as standing still.
LONGEST_START = 240.0
# An endless loop that ends with the benchmark, however that ends.
LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")


def main(argv: Sequence[str] | None = None) -> None:
    """Prints medians, with the processor and its flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--neighbours", nargs="+", type=int, default=[0, 1, 2, 5])
    parser.add_argument("--contestants", nargs="+", choices=DECODERS, default=DECODERS, help="of decoding")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60, help="of each measurement of training, after its start")
    arguments = parser.parse_args(argv)
    rounds, seconds = arguments.rounds, arguments.seconds
    print(f"{processor()}; {rounds} rounds; tokens/s\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder, pairs=4000, words=2000, length=12)
        for workload in arguments.workloads:
            deed, size = workload.split()
            model = save_model(folder, **SIZES[size]) if deed == "decode" else None
            for count in arguments.neighbours:
                with neighbours(count):
                    if model is not None:
                        print(f"## {workload}, {count} neighbours")
                        print(decode(model, folder / "text.a", rounds, arguments.contestants), flush=True)
                        continue
                    found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
                    for _ in range(rounds):
                        for variant, (variables, processes) in VARIANTS.items():
                            found[variant].append(train(workload, environment(variables), processes, folder, seconds))
                speeds = [f"{variant}: {spread(values, 1)}" for variant, values in found.items()]
                print(f"{workload}, {count} neighbours: {'; '.join(speeds)}", flush=True)


def processor() -> str:
    """Returns the processor with its cores and the flags that decide how it multiplies."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{usable_cores()} cores"
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    there = set(facts.get("flags", "").split())
    model = f"{facts.get('model name', '')} (family {facts.get('cpu family', '?')}, model {facts.get('model', '?')})"
    return f"{model}, {usable_cores()} cores, {' '.join(flag for flag in FLAGS if flag in there)}"


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Runs this many busy programs within the block, each in a session of its own."""
    loops = [subprocess.Popen([sys.executable, "-c", LOOP], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def environment(variables: dict[str, str]) -> dict[str, str]:
    """Returns this process's environment with only these thread settings."""
    chosen = {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    kept = {name: value for name, value in os.environ.items() if name not in chosen}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **variables}


def decode(model: Path, text: Path, rounds: int, contestants: Sequence[str]) -> str:
    """Returns a table of one sentence at a time by this package and by CTranslate2, each in a process of its own."""
    words = [sys.executable, "-m", "scripts.benchmarks.decode", str(model), str(text), "--contestants", *contestants]
    words += ["--case", "1 sentence", "real stopping", "--singles", "4", "--repeats", str(rounds)]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment({}), cwd=ROOT).stdout


def train(workload: str, variables: dict[str, str], processes: int, folder: Path, seconds: float) -> float:
    """Measures target tokens per second, without the first lines of the log; 0 if five steps are not done in time."""
    options = {
        **(SMALL if workload == "train small" else BASE),
        "vocab-size": 2000,
        "max-steps": 10**6,
        "save-steps": 10**6,
        "log-steps": 5 if workload == "train small" else 1,
        "processes": processes,
    }
    words = [sys.executable, "-m", "vanilla_transformer", "train", "--train", f"{folder}/text.a", f"{folder}/text.b"]
    words += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with tempfile.TemporaryDirectory(dir=folder) as name:
        words += ["--output", f"{name}/model"]
        with open(Path(name, "output"), "w") as output:
            run = subprocess.Popen(words, stdout=output, stderr=output, env=variables)
        try:
            metrics = Path(name, "model", "metrics.jsonl")
            end = time.monotonic() + LONGEST_START
            while not records(metrics) and time.monotonic() < end:
                if run.poll() is not None:
                    raise SystemExit(Path(name, "output").read_text())
                time.sleep(0.2)
            first = len(records(metrics))
            time.sleep(seconds)
            found = records(metrics)[first:]
        finally:
            run.kill()
            run.wait()
    return statistics.median(found) if found else 0.0


def records(metrics: Path) -> list[float]:
    """Reads the speeds that a run has logged so far."""
    if not metrics.exists():
        return []
    lines = metrics.read_text().splitlines(keepends=True)
    return [json.loads(line)["tokens_per_second"] for line in lines if line.endswith("\n")]


if __name__ == "__main__":
    main()
