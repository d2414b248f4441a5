"""Measures what a checkpoint costs the training loop, if written at once or by a thread beside the loop."""

import argparse
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.analysis.devices import peak_memory
from vanilla_transformer.checkpointing.store import Progress, commit_checkpoint, partial_path
from vanilla_transformer.checkpointing.writer import CheckpointWriter
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.optimisation import make_optimizer, make_schedule

WAYS = ("none", "at once", "beside")


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="on the disk to be measured; a folder in it is made and removed")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--vocab-size", type=int, default=37_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6, help="steps of training in which a checkpoint is written")
    parser.add_argument("--tokens", type=int, default=1_000, help="tokens of a side in a step")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="checkpoints-") as folder:
        training = Training(arguments, Path(folder))
        for way in WAYS:
            training.round(way)  # The first round allocates memory and makes files: it is reported separately.
        first = training.held.pop("beside")[0]
        training.held.clear()
        training.passed.clear()
        for _ in range(arguments.rounds):
            for way in WAYS:
                training.round(way)
        size = sum(file.stat().st_size for file in training.newest().iterdir())
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        peaks = dict(zip(WAYS, pool.map(_peak, [(arguments, way) for way in WAYS], chunksize=1), strict=True))
    print(table(training, first, size, peaks))


class Training:
    """A model trained on random tokens, and its checkpoints.

    Attributes:
        held: Seconds for which the loop waited for a checkpoint, by the way it was written.
        passed: Seconds of the steps of a round, including the checkpoint and the wait for its end.
    """

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        torch.manual_seed(0)
        self.arguments, self.directory, self.step = arguments, directory, 0
        self.accelerator = Accelerator(cpu=True)
        config = VanillaTransformerConfig.from_preset(arguments.preset, vocab_size=arguments.vocab_size)
        self.model = VanillaTransformerForConditionalGeneration(config).train()
        optimizer = make_optimizer(self.model.parameters(), Recipe(), torch.device("cpu"))
        schedule = make_schedule(optimizer, config.d_model, 4000, 1.0)
        _, self.optimizer, self.schedule = self.accelerator.prepare(self.model, optimizer, schedule)
        self.writer = CheckpointWriter(
            self.accelerator, self.model, self.optimizer, self.schedule, directory, lambda message: None
        )
        self.held: dict[str, list[float]] = {}
        self.passed: dict[str, list[float]] = {}
        self._train()

    def round(self, way: str) -> None:
        """Writes one checkpoint in the given way, and runs some steps after it."""
        saves: dict[str, Callable[[], None]] = {
            "none": lambda: None,
            "at once": self._save_at_once,
            "beside": lambda: self.writer.save(Progress(step=self.step), lambda: None),
        }
        start = time.perf_counter()
        saves[way]()
        self.held.setdefault(way, []).append(time.perf_counter() - start)
        for _ in range(self.arguments.steps):
            self._train()
        self.writer.wait()
        self.passed.setdefault(way, []).append(time.perf_counter() - start)
        for old in sorted(self.directory.glob("step-*"))[:-1]:
            shutil.rmtree(old)

    def newest(self) -> Path:
        """Returns the newest checkpoint."""
        return max(self.directory.glob("step-*"))

    def _save_at_once(self) -> None:
        unfinished = partial_path(self.directory, self.step)
        unfinished.mkdir(parents=True)
        self.accelerator.save_state(str(unfinished))
        commit_checkpoint(unfinished, Progress(step=self.step))

    def _train(self) -> None:
        ids = torch.randint(4, self.model.config.vocab_size, (self.arguments.tokens // 25, 25))
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.model(
                input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, num_items_in_batch=ids.numel()
            ).loss
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        self.step += 1


def table(training: Training, first: float, size: int, peaks: dict[str, int]) -> str:
    """Formats the measurements as Markdown; spreads are the minimum and the maximum."""
    none = statistics.median(training.passed["none"])
    rows = [f"| a checkpoint of {size / 1e9:.2f} GB | at once | beside |", "|---|---|---|"]
    held = {way: training.held[way] for way in WAYS[1:]}
    rows.append(f"| the loop waits, s | {' | '.join(map(_spread, held.values()))} |")
    rows.append(f"| the first time, s | | {first:.2f} |")
    more = {way: [seconds - none for seconds in training.passed[way]] for way in WAYS[1:]}
    name = f"{training.arguments.steps} steps ({none:.2f} s) and it take longer by, s"
    rows.append(f"| {name} | {' | '.join(map(_spread, more.values()))} |")
    memory = " | ".join(f"{(peaks[way] - peaks['none']) / 1e9:+.2f}" for way in WAYS[1:])
    rows.append(f"| peak memory, GB more than the {peaks['none'] / 1e9:.2f} of training | {memory} |")
    return "\n".join(rows)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _peak(task: tuple[argparse.Namespace, str]) -> int:
    """Returns the peak memory of a new process that trains and writes two checkpoints."""
    arguments, way = task
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="checkpoints-") as folder:
        training = Training(arguments, Path(folder))
        for _ in range(2):
            training.round(way)
        return peak_memory(torch.device("cpu"))


if __name__ == "__main__":
    main()
