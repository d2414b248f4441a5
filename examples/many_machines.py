"""Translate a large text on several devices or machines, in parts, with datatrove (`pip install datatrove`).

    CUDA_VISIBLE_DEVICES=0 python examples/many_machines.py my-model corpus.en parts --tasks 100 --count 50
    CUDA_VISIBLE_DEVICES=1 python examples/many_machines.py my-model corpus.en parts --tasks 100 --first 50
    python examples/many_machines.py my-model corpus.en parts --tasks 100 --slurm partition=gpu time=8:00:00
    python examples/many_machines.py my-model corpus.en parts --tasks 100 --join corpus.de

Start it once for each device, on any machine that sees the folder, or once for Slurm. If one is killed, start it
again: parts that are there stay. A folder is for one model and one text.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import dill
from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor

from vanilla_transformer import Translator


def lines_of(text: Path, rank: int, tasks: int) -> Iterator[str]:
    """Yields the lines that begin in one of equally large parts of a file."""
    start, end = (text.stat().st_size * number // tasks for number in (rank, rank + 1))
    with open(text, "rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()  # A line that begins earlier belongs to an earlier part.
        while file.tell() < end:
            yield file.readline().decode().rstrip("\r\n")


def part_of(folder: Path, rank: int, tasks: int) -> Path:
    """Returns the file of a part's translation."""
    return folder / f"part-{rank:05d}-of-{tasks:05d}.txt"


@dataclass
class TranslatePart:
    """A step of a pipeline: translates the part of its rank; its file appears when it is complete."""

    model: str
    text: Path
    folder: Path

    def __call__(self, data: object, rank: int, world_size: int) -> None:
        """Translates the part, unless it is there."""
        part = part_of(self.folder, rank, world_size)
        if part.exists():
            return
        translations = Translator(self.model)(lines_of(self.text, rank, world_size))
        unfinished = part.with_suffix(".unfinished")
        with open(unfinished, "w", encoding="utf-8") as file:
            file.writelines(f"{translation.text}\n" for translation in translations)
        unfinished.replace(part)


def join(folder: Path, tasks: int, output: Path) -> None:
    """Writes the translations of all parts to one file, in order."""
    parts = [part_of(folder, rank, tasks) for rank in range(tasks)]
    if missing := [part.name for part in parts if not part.exists()]:
        raise SystemExit(f"{len(missing)} of {tasks} parts are missing, the first of them {missing[0]}.")
    with open(output, "wb") as whole:
        whole.writelines(part.read_bytes() for part in parts)


def main(argv: Sequence[str] | None = None) -> None:
    """Translates some tasks here, puts all of them into Slurm's queue, or joins the parts."""
    parser = argparse.ArgumentParser(description="Translate a large text in parts, on several machines.")
    parser.add_argument("model", help="model directory or Hub id")
    parser.add_argument("text", type=Path, help="UTF-8 text, one sentence a line")
    parser.add_argument("folder", type=Path, help="folder for the parts")
    parser.add_argument("--tasks", type=int, required=True, help="number of parts")
    parser.add_argument("--first", type=int, default=0, help="first task to do here")
    parser.add_argument("--count", type=int, help="number of tasks to do here (default: all further ones)")
    parser.add_argument("--slurm", nargs="+", metavar="NAME=VALUE", help="settings of SlurmPipelineExecutor")
    parser.add_argument("--join", type=Path, metavar="FILE", help="join the parts into this file")
    options = parser.parse_args(argv)
    text, folder, tasks = options.text.resolve(), options.folder.resolve(), options.tasks
    pipeline, logs = [TranslatePart(options.model, text, folder)], str(folder / f"logs-of-{tasks:05d}")
    if options.join:
        join(folder, tasks, options.join)
    elif options.slurm:
        settings = {n: int(v) if v.isdigit() else v for n, _, v in (word.partition("=") for word in options.slurm)}
        dill.settings["recurse"] = True  # The step is sent to the nodes with the functions that it calls.
        # The program that datatrove starts on a node lies beside this Python.
        path = f"export PATH='{Path(sys.executable).parent}':$PATH"
        SlurmPipelineExecutor(pipeline, tasks, logging_dir=logs, **{"env_command": path, **settings}).run()
    else:
        here = {"local_rank_offset": options.first, "local_tasks": options.count or tasks - options.first}
        # With several workers datatrove waits for ever for one that is killed.
        LocalPipelineExecutor(pipeline, tasks, workers=1, logging_dir=logs, **here).run()


if __name__ == "__main__":
    main()
