"""The summary of a finished run, summary.json in its directory."""

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    Table 2 does, without padding; `peak_flops_per_second` is the total over all devices.
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
    peak_flops_per_second: float
    peak_source: str
    """`published` in the device's data sheet, or `measured` with a matrix product at the end of the run."""
    share_of_peak: float
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
        """Describes speed, operations and memory, each with its reference."""
        speed = f"{self.target_tokens_per_second:,.0f} {items}/s"
        memory = f"peak memory {self.peak_memory_bytes / 1e9:.2f} GB"
        if self.processes > 1:
            speed += f" ({self.target_tokens_per_second / self.processes:,.0f} per process)"
            memory += " in the main process"
        how = "published for" if self.peak_source == "published" else "measured with matrix products on"
        peak = f"{format_flops_per_second(self.peak_flops_per_second)}, {how} {self.device} in {self.precision}"
        # The operations of a model of another family may be unknown.
        cost = [f"{self.flops:.2e} FLOPs, {self.share_of_peak:.1%} of peak ({peak})"] if self.flops else []
        return [speed, *cost, memory]

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
        return cls(**values)


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


def format_flops_per_second(flops_per_second: float) -> str:
    """Formats FLOP/s with a suitable unit."""
    value, unit = (
        (flops_per_second / 1e12, "TFLOP/s") if flops_per_second >= 1e12 else (flops_per_second / 1e9, "GFLOP/s")
    )
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"
