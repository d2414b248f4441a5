"""Kills workers of `translate --tasks`, or all of it, at random moments: the result must be that of one process.

    python -m scripts.stress.kill_tasks DIRECTORY --rounds 20

Makes a small model and text in the directory. In each round two workers translate the text in 8 tasks, while sometimes
a worker and sometimes everything is killed, until all is done. Then the joined parts must be the bytes of one process,
no finished part may have been written again, and another model and another input must be refused.
"""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import tyro

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)

TASKS, WORKERS, LINES = 8, 2, 4000
SETTINGS = ["--num-beams", "2", "--max-length-beyond-source", "4", "--precision", "float32", "--device", "cpu"]
# Lines in a chunk: small chunks let a task be interrupted in the middle. Workers read the number from this file.
SMALL_CHUNKS = "from vanilla_transformer.translation import translator\ntranslator.CHUNK_LINES['cpu'] = 20\n"


@dataclass
class Options:
    """Rounds of killing."""

    directory: tyro.conf.Positional[Path]
    """Where model, text and translations lie; made if it is not there."""
    rounds: int = 20
    """Number of times that the text is translated."""
    seed: int = 1
    """Of the moments."""


def main(options: Options) -> None:
    """Prints a row for each round, and fails at the first wrong one."""
    place = options.directory.resolve()
    make_ground(place)
    draw = random.Random(options.seed)
    run(place, "in", "--output", "whole", "--threads", "1").wait()
    whole = (place / "whole").read_bytes()
    print("| round | workers killed | all killed | starts | seconds |\n|---|---|---|---|---|")
    for number in range(1, options.rounds + 1):
        began = time.monotonic()
        parts = place / f"parts-{number}"
        workers, everything, starts = disturb(place, parts, draw)
        joined = place / f"joined-{number}"
        run(place, command="join", words=[str(parts), "--output", str(joined)]).wait()
        assert joined.read_bytes() == whole, f"round {number}: other bytes than one process writes"
        refuse_others(place, parts)
        print(f"| {number} | {workers} | {everything} | {starts} | {time.monotonic() - began:.0f} |", flush=True)


def make_ground(place: Path) -> None:
    """Makes a tiny model, another one, and text."""
    (place / "patch").mkdir(parents=True, exist_ok=True)
    (place / "patch" / "sitecustomize.py").write_text(SMALL_CHUNKS)
    sizes: dict[str, Any] = {
        "vocab_size": 260,
        "d_model": 16,
        "d_ff": 32,
        "num_heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
    }
    for seed, name in enumerate(("model", "other")):
        torch.manual_seed(seed)
        config = VanillaTransformerConfig(**sizes)
        VanillaTransformerForConditionalGeneration(config).save_pretrained(place / name)
        VanillaTransformerTokenizer.train(["a b"], vocab_size=260).save_pretrained(place / name)
    draw = random.Random(0)
    lines = ["".join(draw.choices("abcdefgh ", k=draw.randint(0, 30))) for _ in range(LINES)]
    (place / "in").write_text("".join(f"{line}\n" for line in lines))
    (place / "changed").write_text("".join(f"{line}\n" for line in [*lines[:-1], "another"]))


def run(
    place: Path, *options: str, model: str = "model", command: str = "translate", words: list[str] | None = None
) -> "subprocess.Popen[str]":
    """Starts a command of the package."""
    words = [model, *options, *SETTINGS] if words is None else words
    paths = [str(place / "patch"), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "vanilla_transformer", command, *words],
        cwd=place,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def disturb(place: Path, parts: Path, draw: random.Random) -> tuple[int, int, int]:
    """Translates with kills until all is done; returns the kills of a worker, those of everything, and the starts."""
    workers, everything, starts = 0, 0, 0
    while True:
        before = {path: path.stat().st_mtime_ns for path in parts.glob("part-*.txt") if is_done(path)}
        command = run(place, "in", "--output", str(parts), "--tasks", str(TASKS), "--workers", str(WORKERS))
        starts += 1
        # A few kills each time, ever later, so that the work comes to its end.
        for _ in range(draw.randint(0, 2)):
            time.sleep(draw.uniform(1, 4 + 3 * starts))
            if command.poll() is not None:
                break
            children = psutil.Process(command.pid).children()
            if draw.random() < 0.5 and children:
                draw.choice(children).kill()
                workers += 1
            else:
                command.kill()
                everything += 1
                # SMALL_CHUNKS has workers import torch before they notice that their parent is gone.
                assert not psutil.wait_procs(children, timeout=60)[1], "workers outlive their parent"
                break
        command.communicate()
        for path, moment in before.items():
            assert path.stat().st_mtime_ns == moment, f"{path} was done, and written again"
        if command.returncode == 0:
            return workers, everything, starts


def is_done(part: Path) -> bool:
    """Returns True if a part has its record, which is written last."""
    return part.with_suffix(".json").exists()


def refuse_others(place: Path, parts: Path) -> None:
    """Checks that the folder refuses another model and another input."""
    one = ["--output", str(parts), "--tasks", str(TASKS), "--task", "3"]
    for command, name in ((run(place, "in", *one, model="other"), "model"), (run(place, "changed", *one), "input")):
        said = command.communicate()[1]
        assert command.returncode == 1 and f"another {name} " in said, said


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main(tyro.cli(Options, description=__doc__))
