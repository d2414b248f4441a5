"""The figures of a finished run, which are saved as summary.json, and its directory as a Python object."""

import dataclasses
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from vanilla_transformer.atomic_files import atomic_write_text
from vanilla_transformer.errors import RunError
from vanilla_transformer.evaluation.metrics import Score
from vanilla_transformer.model_directory import SUMMARY
from vanilla_transformer.training.choices import counted


@dataclass(frozen=True)
class Summary:
    """The figures of a finished run.

    `seconds` is the training time, including checkpoints and evaluations on `dev`. `flops` counts the matrix
    multiplications without padding; see `cost.training_flops`. `languages` are the languages of source and target, or
    None if the names of the corpora do not contain them.
    """

    steps: int
    epochs: float
    averaged_steps: list[int]
    parameters: int
    pairs: int
    target_tokens: int
    flops: float
    seconds: float
    best_dev_loss: float | None
    best_dev_step: int | None
    last_dev_loss: float | None
    peak_memory_bytes: int
    device: str
    processes: int
    precision: str
    scores: dict[str, list[Score]]
    languages: list[str | None] = field(default_factory=list)

    def sentences(self, items: str) -> list[str]:
        """Describes the length, the cost and the losses of the run; `items` is the plural name of the loss unit."""
        # For the models of other packages, the number of operations may be unknown.
        flops = f"{self.flops:.2e} FLOPs; " if self.flops else ""
        memory = f"peak memory {self.peak_memory_bytes / 1e9:.2f} GB{' in the main process' * (self.processes > 1)}"
        found = [
            f"{counted(self.steps, 'step')}, {self.epochs:.1f} epochs, {self.target_tokens:,} {items}.",
            f"{self.seconds / 60:.1f} minutes on {self.device} in {self.precision}: "
            f"{self.target_tokens / self.seconds:,.0f} {items}/s; {flops}{memory}.",
        ]
        if None not in (self.best_dev_loss, self.last_dev_loss):
            found.append(
                f"Loss on dev: {self.last_dev_loss:.4f} nats per {items.removesuffix('s')} at the end, "
                f"{self.best_dev_loss:.4f} at best (step {self.best_dev_step:,})"
                f"{', before averaging' if len(self.averaged_steps) > 1 else ''}."
            )
        return found

    def write(self, file: Path) -> None:
        """Writes the summary atomically. NaN, such as the score of an empty corpus, becomes null."""
        values = json.loads(json.dumps(dataclasses.asdict(self)), parse_constant=lambda name: None)
        atomic_write_text(file, json.dumps(values, indent=1) + "\n")

    @classmethod
    def read(cls, file: Path) -> "Summary | None":
        """Returns the summary in a file, or None if the file does not exist."""
        if not file.is_file():
            return None
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            values["scores"] = {part: list(map(_score, scores)) for part, scores in values["scores"].items()}
            return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})
        except (ValueError, TypeError, LookupError) as error:
            raise RunError(f"{file} is damaged ({error!r}). If you delete it, the run counts as unfinished.") from None


def _score(values: dict[str, str | float | None]) -> Score:
    value = math.nan if values["value"] is None else float(values["value"])
    return Score(str(values["name"]), value, str(values["signature"]))


def describe_weights(averaged_steps: Sequence[int]) -> str:
    """Describes from which checkpoints the weights of the model were computed."""
    checkpoints = "the mean of the checkpoints of steps" if len(averaged_steps) > 1 else "the checkpoint of step"
    return f"{checkpoints} {', '.join(f'{step:,}' for step in averaged_steps)}"


@dataclass(frozen=True)
class TrainedRun(os.PathLike[str]):
    """The directory of a finished run. It is an `os.PathLike`.

    Attributes:
        directory: The model directory, which contains the tokenizer, the card, the log and the learning curves.
    """

    directory: Path

    @property
    def summary(self) -> Summary | None:
        """The figures of the run, such as steps, seconds and losses, or None if the run is not finished."""
        return Summary.read(self.directory / SUMMARY)

    @property
    def scores(self) -> dict[str, dict[str, Score]]:
        """The scores on `dev` and `test`, if the run has them, by the name of the metric."""
        summary = self.summary
        parts = summary.scores.items() if summary else ()
        return {part: {score.name: score for score in scores} for part, scores in parts}

    def __fspath__(self) -> str:
        return str(self.directory)

    __str__ = __fspath__

    def __truediv__(self, name: str) -> Path:
        """Returns the path of a file in the directory."""
        return self.directory / name


def peak_memory(device: torch.device) -> int:
    """Returns the peak memory of this process in bytes, on the accelerator or, on a CPU, in main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset
    import resource  # Windows does not have this module.

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def describe_device(device: torch.device, processes: int) -> str:
    """Describes the kind and number of devices of a run."""
    if device.type == "cuda":
        return f"{processes} × {torch.cuda.get_device_name(device)}"
    if device.type == "cpu":
        threads = processes * torch.get_num_threads()
        return f"{threads} CPU {'thread' if threads == 1 else 'threads'}"
    return device.type
