"""What a running training tells: progress bar, train.log, metrics.jsonl and its curves, experiment trackers."""

import json
import math
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker, TensorBoardTracker, get_available_trackers
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from vanilla_transformer.atomic_files import atomic_replace, atomic_write_text
from vanilla_transformer.errors import RecipeError, RunError

# The directory in a run's output in which trackers write their files.
TRACKER_FILES = "trackers"
PROJECT = "vanilla-transformer"


class RunLogger:
    """Writes to the screen and to the log files of a run; disabled on all processes but the main one.

    Args:
        metrics: The metrics.jsonl of the run.
        log: The train.log of the run.
        enabled: Whether anything is shown or written.
    """

    def __init__(self, metrics: Path, log: Path, *, enabled: bool) -> None:
        self.metrics, self.log = metrics, log
        self.enabled = enabled
        self.bar: tqdm[Any] | None = None

    def info(self, message: str) -> None:
        """Shows a message on the screen and writes it to the log."""
        if self.enabled:
            tqdm.write(message, file=sys.stderr)
            self.debug(message)

    def debug(self, message: str) -> None:
        """Writes a message to the log only."""
        if self.enabled:
            _append(self.log, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}")

    def log_metrics(self, metrics: dict[str, float], message: str) -> None:
        """Appends a line to metrics.jsonl, and the message to the log and, without a bar, to the screen."""
        if self.enabled:
            _append(self.metrics, json.dumps({name: value for name, value in metrics.items() if math.isfinite(value)}))
            self.debug(message)
            if self.bar is None:
                print(message, file=sys.stderr, flush=True)

    def start_bar(self, *, total: float, done: int) -> None:
        """Shows a progress bar in a terminal; a file or a pipe gets a line for each call of `log_metrics` instead."""
        if self.enabled and sys.stderr.isatty():
            self.bar = tqdm(total=total, initial=done, unit=" steps", dynamic_ncols=True, smoothing=0.1)

    def update_bar(self, figures: str) -> None:
        """Advances the bar by one step and shows the latest figures beside it."""
        if self.bar is not None:
            self.bar.set_postfix_str(figures, refresh=False)
            self.bar.update(1)

    def close_bar(self) -> None:
        """Leaves the bar as it is; later output appears below it."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def read_metrics(self) -> list[dict[str, float]]:
        """Returns the records of metrics.jsonl, without a line that a kill has cut."""
        records = []
        for line in self.metrics.read_bytes().splitlines() if self.metrics.exists() else []:
            with suppress(ValueError):
                records.append(json.loads(line))
        return records

    def truncate_after(self, step: int) -> None:
        """Drops the records of steps that will be repeated."""
        if self.enabled and self.metrics.exists():
            kept = [json.dumps(record) for record in self.read_metrics() if record["step"] <= step]
            atomic_write_text(self.metrics, "".join(f"{line}\n" for line in kept))


def _append(file: Path, line: str) -> None:
    try:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    except OSError as error:
        raise RunError(
            f"{file} cannot be written ({error.strerror}): fix that and run the same command again to continue."
        ) from error


def make_trackers(names: Sequence[str], output: Path) -> list[str | GeneralTracker]:
    """Returns accelerate's trackers of these names for the run in `output`; nothing is written until they start.

    Raises:
        RecipeError: A tracker does not exist or is not installed, which accelerate would pass over.
    """
    available = sorted(map(str, get_available_trackers()))
    for name in names:
        if name not in available:
            raise RecipeError(
                f"There is no tracker {name} here: available are {', '.join(available) or 'none'}, others when "
                "their packages are installed."
            )
    # accelerate would name the run in TensorBoard after the project.
    own = {"tensorboard": TensorBoardTracker(output.absolute().name, output / TRACKER_FILES)}
    return [own.get(name, name) for name in dict.fromkeys(names)]


def plot_learning_curves(records: Sequence[dict[str, float]], file: Path, unit: str) -> None:
    """Plots training loss, loss on `dev` and learning rate over the steps from the records of a metrics.jsonl.

    `unit` is the unit of the losses, such as nats per target token.
    """
    figure = Figure(figsize=(8, 6), layout="constrained")
    losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _plot(losses, records, "loss", "train, with dropout and label smoothing")
    _plot(losses, records, "dev_loss", "dev, without either")
    _plot(rates, records, "learning_rate", "Eq. 3")
    losses.set_ylabel(f"loss, {unit}")
    rates.set_ylabel("learning rate")
    rates.set_xlabel("step")
    with atomic_replace(file) as temporary:
        figure.savefig(temporary, dpi=120)


def _plot(axes: Axes, records: Sequence[dict[str, float]], field: str, label: str) -> None:
    points = [(record["step"], record[field]) for record in records if field in record]
    if points:
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, label=label, marker="." if len(points) < 20 else "")
        axes.legend()
        axes.grid(visible=True, alpha=0.3)
