"""A finished run: its figures, summary.json in its directory, and that directory in Python."""

import dataclasses
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vanilla_transformer.atomic_files import atomic_write_text
from vanilla_transformer.evaluation.metrics import Score

if TYPE_CHECKING:
    from vanilla_transformer.tasks import Task

# Files of a run's directory.
SUMMARY = "summary.json"
CURVES = "learning_curves.png"


@dataclass(frozen=True)
class Summary:
    """The figures of a finished run.

    `seconds` is the training time including checkpoints and evaluations on `dev`; `flops` counts matrix products as
    Table 2 does, without padding.
    """

    steps: int
    epochs: float
    averaged_steps: list[int]
    parameters: int
    pairs: int
    target_tokens: int
    flops: float
    seconds: float
    last_loss: float | None
    best_dev_loss: float | None
    best_dev_step: int | None
    last_dev_loss: float | None
    peak_memory_bytes: int
    device: str
    processes: int
    target_tokens_per_second: float
    precision: str
    scores: dict[str, list[Score]]
    languages: list[str | None] = field(default_factory=list)
    """Of source and target, as far as the names of the corpora tell them."""

    def describe(self, items: str = "target tokens") -> str:
        """Returns the summary as a sentence, with the given name for the items of the loss."""
        losses = [f"last training loss {self.last_loss:.3f}"] if self.last_loss is not None else []
        if self.best_dev_loss is not None:
            best = f"{self.best_dev_loss:.4f} (step {self.best_dev_step:,})"
            losses.append(f"dev loss {self.last_dev_loss:.4f}, at best {best}")
        return (
            f"Trained {self.parameters:,} parameters for {self.steps:,} steps, {self.epochs:.1f} epochs, on "
            f"{self.target_tokens:,} {items} in {self.seconds / 60:.1f} minutes on {self.device}: "
            f"{'; '.join([*losses, *self.describe_cost(items)])}."
        )

    def describe_cost(self, items: str = "target tokens") -> list[str]:
        """Describes speed, operations and memory."""
        speed = f"{self.target_tokens_per_second:,.0f} {items}/s"
        memory = f"peak memory {self.peak_memory_bytes / 1e9:.2f} GB"
        if self.processes > 1:
            speed += f" ({self.target_tokens_per_second / self.processes:,.0f} per process)"
            memory += " in the main process"
        # The operations of a model of another family may be unknown.
        return [speed, *([f"{self.flops:.2e} FLOPs"] if self.flops else []), memory]

    def write(self, file: Path) -> None:
        """Writes the summary atomically, without numbers that JSON cannot represent, such as a score of no text."""
        values = json.loads(json.dumps(dataclasses.asdict(self)), parse_constant=lambda name: None)
        atomic_write_text(file, json.dumps(values, indent=1) + "\n")

    @classmethod
    def read(cls, file: Path) -> "Summary | None":
        """Returns the summary in a file, None if there is none."""
        values = read_summary(file)
        if not values:
            return None
        for part, scores in values["scores"].items():
            figures = [(score["name"], score["value"], score["signature"]) for score in scores]
            values["scores"][part] = [
                Score(name, math.nan if value is None else value, signature) for name, value, signature in figures
            ]
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})


def items_of_loss(task: "Task") -> str:
    """Returns the name of the items of a task's loss, in the plural."""
    items = {
        "AutoModelForSeq2SeqLM": "target tokens",
        "AutoModelForCausalLM": "tokens",
        "AutoModelForMaskedLM": "masked tokens",
        "AutoModelForTokenClassification": "words",
    }
    return items.get(task.auto_class, task.form.unit)


def read_summary(file: Path) -> dict[str, Any] | None:
    """Returns the summary of a finished run as a dictionary, or None."""
    if not file.is_file():
        return None
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON ({error}): remove it to continue without it.") from None
    return summary if isinstance(summary, dict) else None


def describe_weights(averaged_steps: Sequence[int]) -> str:
    """Describes the checkpoints that the model's weights come from."""
    checkpoints = "the mean of the checkpoints of steps" if len(averaged_steps) > 1 else "the checkpoint of step"
    return f"{checkpoints} {', '.join(f'{step:,}' for step in averaged_steps)}"


@dataclass(frozen=True, repr=False)
class TrainedRun(os.PathLike[str]):
    """The directory of a finished run, an `os.PathLike`. A notebook shows its curves.

    Attributes:
        directory: The directory of the model, with its tokenizer, card, log and learning curves.
    """

    directory: Path

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of the run: steps, seconds, losses, memory and more."""
        return read_summary(self.directory / SUMMARY) or {}

    @property
    def scores(self) -> dict[str, dict[str, Score]]:
        """The score of each metric, by name, on `dev` and `test`, if given."""
        summary = Summary.read(self.directory / SUMMARY)
        parts = summary.scores if summary else {}
        return {part: {score.name: score for score in scores} for part, scores in parts.items()}

    def __fspath__(self) -> str:
        return str(self.directory)

    def __str__(self) -> str:
        return str(self.directory)

    def __repr__(self) -> str:
        values = {part: {name: score.value for name, score in of.items()} for part, of in self.scores.items()}
        return f"{type(self).__name__}({str(self.directory)!r}, scores={values})"

    def __truediv__(self, name: str) -> Path:
        """Returns the path of a file in the directory."""
        return self.directory / name

    def _repr_png_(self) -> bytes | None:
        curves = self.directory / CURVES
        return curves.read_bytes() if curves.is_file() else None


def peak_memory(device: torch.device) -> int:
    """Returns the peak memory of this process in bytes: of the device, or main memory on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset
    status = Path("/proc/self/status")
    if status.is_file():
        # On Linux ru_maxrss includes the process's memory before it became this program.
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    import resource  # Windows has none.

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
