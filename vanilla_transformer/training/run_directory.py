"""The output directory of a run: its lock, its recipe, its log and metrics, and its learning curves."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from vanilla_transformer.atomic_files import PARTIAL, atomic_replace, atomic_write_text
from vanilla_transformer.errors import RunError, SettingError
from vanilla_transformer.figures import new_figure
from vanilla_transformer.model_directory import CHECKPOINTS, LOG, METRICS, RECIPE, SUMMARY, read_metrics
from vanilla_transformer.progress import is_terminal, show
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe, in_words
from vanilla_transformer.training.checkpoints import has_checkpoints
from vanilla_transformer.training.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOCK = ".lock"

# Settings that do not change the weights. A resumed run may change them.
_FREE_FIELDS = {
    *("test", "metrics", "examples", "num_beams", "length_penalty", "length_penalty_type", "max_length_beyond_source"),
    *("max_minutes", "keep_checkpoints", "log_steps", "trackers", "output", "processes", "process_timeout"),
}


class AlreadyFinished(Exception):
    """The run of this recipe is already finished. The message explains how to train it further."""


def output_path(recipe: Recipe) -> Path:
    """Returns the output directory of the recipe, or raises SettingError if the recipe does not name one."""
    if recipe.run.output is None:
        raise SettingError("There is no output directory. Name one with --output.")
    return Path(recipe.run.output)


class RunDirectory:
    """The output directory of a run. Only one run at a time may use it.

    Attributes:
        prepared: The directory of the tokenized corpus, which is deleted when the run is finished.
        summary: The file that is written last. The run is finished if it exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints, self.prepared, self.summary = path / CHECKPOINTS, path / "prepared", path / SUMMARY
        # A killed process would not remove a soft lock, and the next process would have to wait for it forever.
        self._lock = FileLock(path / LOCK, blocking=False, thread_local=False, fallback_to_soft=False)

    def open(self, recipe: Recipe) -> Recipe:
        """Locks the directory; returns the recipe, completed with the settings of the run that it resumes, if any.

        If the run has checkpoints, the directory is not changed until `reopen`.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock()
        if (self.path / RECIPE).is_file():
            return self._resumed(recipe)
        if any(not file.name.startswith(PARTIAL) and file.name != LOCK for file in self.path.iterdir()):
            raise RunError(
                f"The output directory {self.path} contains files that do not belong to a training run. Name a "
                "directory that is empty or does not exist."
            )
        self.write_recipe(recipe)
        return recipe

    def unlock(self) -> None:
        """Allows other processes to train in the directory. If the process is killed, the system does this."""
        if self._lock.is_locked:
            with suppress(OSError):  # Windows does not remove open files. There, `release` removes the file.
                (self.path / LOCK).unlink()
            self._lock.release()

    def lock(self) -> None:
        """Prevents other processes from training in the directory until `unlock`."""
        try:
            self._lock.acquire()
        except Timeout:
            raise RunError(
                f"Another process is training in {self.path}. Stop it, wait for it, or name another directory."
            ) from None
        except PermissionError:  # The lock may belong to the run of another user.
            raise
        except OSError:  # The disk does not support locks. Writing the next file reports any other error.
            pass

    def write_recipe(self, recipe: Recipe) -> None:
        """Writes the recipe that the run follows."""
        atomic_write_text(self.path / RECIPE, recipe.to_yaml())

    def reopen(self, recipe: Recipe) -> None:
        """Prepares the directory to resume training with this recipe. A finished run becomes unfinished."""
        self.summary.unlink(missing_ok=True)
        self.write_recipe(recipe)

    def _resumed(self, recipe: Recipe) -> Recipe:
        kept = load_recipe(self.path / RECIPE)
        if not has_checkpoints(self.checkpoints):
            # Before the first checkpoint, the new recipe replaces the saved one, which may fit another device.
            if self.summary.exists() or any(self.path.glob("model*.safetensors")):
                raise RunError(
                    f"The output directory {self.path} contains a model without the checkpoints of its run, so its "
                    "run cannot be resumed. Name another directory."
                )
            self.write_recipe(recipe)
            return recipe
        chosen = {name: kept[name] for name in recipe.open_settings}
        merged = recipe.with_options(**chosen)
        longer = {name for name in ("max_steps", "patience") if kept[name] and (merged[name] or 0) > kept[name]}
        same = {*_FREE_FIELDS, *longer}
        differing = sorted(name for name, value in kept.options.items() if value != merged[name] and name not in same)
        if differing:
            saved, requested = (
                ", ".join(f"{name} {in_words(one[name]) or 'none'}" for name in differing) for one in (kept, merged)
            )
            raise RunError(
                f"The output directory {self.path} contains a run with different settings (saved: {saved}; "
                f"requested: {requested}). Name another directory, or use the same settings to resume the run."
            )
        summary = Summary.read(self.summary)
        if summary is None:
            return merged
        steps, patience = kept.optimization.max_steps or 0, kept.evaluation.patience
        limit = "patience" if patience and summary.steps < steps else "max_steps"  # The limit that ended the run.
        if limit in longer:
            return merged
        raise AlreadyFinished(
            f"The run in {self.path} is finished, there is nothing to do: a larger --{limit.replace('_', '-')} than "
            f"{kept[limit]:,} resumes it, another --output starts a new run, and `evaluate` scores the model."
        )


class RunLogger:
    """Writes messages to the terminal and to the log files of a run. Only the main process enables it."""

    def __init__(self, directory: Path, *, enabled: bool) -> None:
        self.directory, self.enabled = directory, enabled

    def info(self, message: str, *, shown: bool = True) -> None:
        """Writes a message to the log and, if `shown`, to the terminal."""
        if self.enabled:
            if shown:
                show(message)
            _append(self.directory / LOG, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}")

    def log_metrics(self, metrics: dict[str, float], message: str) -> None:
        """Appends the metrics to METRICS and the message to LOG; the terminal shows it if there is no progress bar."""
        if self.enabled:
            _append(self.directory / METRICS, json.dumps(metrics))
            self.info(message, shown=not is_terminal(sys.stderr))

    @contextmanager
    def optional(self, part: str) -> Iterator[None]:
        """Converts an error of the body, on which the run does not depend, to a warning that begins with `part`."""
        try:
            yield
        except Exception as error:
            self.info(f"Warning: {part}: {error}")

    def truncate_after(self, step: int) -> None:
        """Deletes the metrics of later steps, because the resumed run repeats them."""
        file = self.directory / METRICS
        if self.enabled and file.exists():
            kept = [json.dumps(record) for record in read_metrics(self.directory) if record["step"] <= step]
            atomic_write_text(file, "".join(f"{line}\n" for line in kept))


def _append(file: Path, line: str) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")


def plot_learning_curves(records: Sequence[dict[str, float]], file: Path, unit: str, schedule: str) -> None:
    """Plots the training loss, the dev loss and the learning rate of each step.

    Args:
        records: The metrics, as `read_metrics` returns them.
        unit: The unit of the losses, such as nats per target token.
        schedule: What the learning rate follows, such as Eq. 3.
    """
    figure = new_figure(8, 6)
    losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _plot(losses, records, "loss", "train")
    _plot(losses, records, "dev_loss", "dev, without dropout and label smoothing")
    _plot(rates, records, "learning_rate", schedule)
    losses.set_ylabel(f"loss, {unit}")
    rates.set_ylabel("learning rate")
    rates.set_xlabel("step")
    with atomic_replace(file) as temporary:
        figure.savefig(temporary, dpi=120)


def _plot(axes: "Axes", records: Sequence[dict[str, float]], field: str, label: str) -> None:
    points = [(record["step"], record[field]) for record in records if field in record]
    if points:
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, label=label, marker="." if len(points) < 20 else "")
        axes.legend()
        axes.grid(visible=True, alpha=0.3)
