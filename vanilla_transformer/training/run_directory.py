"""The output directory: what it may hold when a run starts, and what the run writes to it: log, metrics and curves."""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout
from tqdm import tqdm

from vanilla_transformer.atomic_files import PARTIAL, atomic_replace, atomic_write_text
from vanilla_transformer.errors import RecipeError, RunError
from vanilla_transformer.model_directory import CHECKPOINTS, LOG, METRICS, RECIPE, SUMMARY, read_metrics
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe, in_words
from vanilla_transformer.training.checkpoints import has_checkpoints
from vanilla_transformer.training.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOCK = ".lock"

# These change no weights.
_FREE_FIELDS = {
    *("test", "metrics", "examples", "num_beams", "length_penalty", "length_penalty_type", "max_length_beyond_source"),
    *("max_minutes", "keep_checkpoints", "log_steps", "trackers", "output", "processes", "process_timeout"),
}


class AlreadyFinished(Exception):
    """The finished run of the recipe exists; the message says so and how to train further."""


def output_path(recipe: Recipe) -> Path:
    """Returns the output directory of the recipe, which must name one."""
    if recipe.run.output is None:
        raise RecipeError("There is no output directory: name one as --output.")
    return Path(recipe.run.output)


class RunDirectory:
    """The output directory of a run, which one run at a time may use.

    Attributes:
        prepared: The corpus in tokens, kept as long as the run needs it.
        summary: The file that is written last. The run is finished if it exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints, self.prepared, self.summary = path / CHECKPOINTS, path / "prepared", path / SUMMARY
        # Not the soft lock: a killed process leaves it behind, and the next would wait for it in vain.
        self._lock = FileLock(path / LOCK, blocking=False, thread_local=False, fallback_to_soft=False)

    def open(self, recipe: Recipe) -> Recipe:
        """Prepares the directory and returns the recipe with the choices of the run that continues in it, if any.

        A run that has checkpoints stays unchanged until `reopen`.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock()
        if (self.path / RECIPE).is_file():
            return self._resumed(recipe)
        if any(not file.name.startswith(PARTIAL) and file.name != LOCK for file in self.path.iterdir()):
            raise RunError(
                f"The output directory {self.path} holds files that do not belong to a training run: name "
                "one that is empty or does not exist."
            )
        self.write_recipe(recipe)
        return recipe

    def unlock(self) -> None:
        """Lets others train in the directory; the end of the process does so too, however it ends."""
        if self._lock.is_locked:
            with suppress(OSError):  # Windows does not remove open files; there the library removes it next.
                (self.path / LOCK).unlink()
            self._lock.release()

    def lock(self) -> None:
        """Keeps others from training in the directory until `unlock`."""
        try:
            self._lock.acquire()
        except Timeout:
            raise RunError(
                f"Another process is training in {self.path}: stop it or wait for it, or name another directory."
            ) from None
        except PermissionError:  # The lock may be another user's, whose run nothing else would protect.
            raise
        except OSError:  # The disk cannot lock files: others are not kept out. Any other error the next file shows.
            pass

    def write_recipe(self, recipe: Recipe) -> None:
        """Writes the recipe that the run follows."""
        atomic_write_text(self.path / RECIPE, recipe.to_yaml())

    def reopen(self, recipe: Recipe) -> None:
        """Takes the directory for training by a recipe; a finished run is then unfinished again."""
        self.summary.unlink(missing_ok=True)
        self.write_recipe(recipe)

    def _resumed(self, recipe: Recipe) -> Recipe:
        kept = load_recipe(self.path / RECIPE)
        if not has_checkpoints(self.checkpoints):
            # As long as nothing is learned, the new recipe counts: the first try may have been on another device.
            if self.summary.exists() or any(self.path.glob("model*.safetensors")):
                raise RunError(
                    f"The output directory {self.path} holds a model without the checkpoints of its run, which "
                    "cannot be continued: name another directory."
                )
            self.write_recipe(recipe)
            return recipe
        chosen = {name: kept[name] for name, value in recipe.options.items() if value is None or value == "auto"}
        merged = recipe.with_options(**chosen)
        longer = {name for name in ("max_steps", "patience") if kept[name] and (merged[name] or 0) > kept[name]}
        same = {*_FREE_FIELDS, *longer}
        differing = sorted(name for name, value in kept.options.items() if value != merged[name] and name not in same)
        if differing:
            changes = "; ".join(
                f"{name} {in_words(kept[name]) or 'none'} there, {in_words(merged[name]) or 'none'} here"
                for name in differing
            )
            raise RunError(
                f"The output directory {self.path} holds another run ({changes}): name another directory, or "
                "give the same recipe to continue it."
            )
        summary = Summary.read(self.summary)
        if summary is None:
            return merged
        steps, patience = kept.optimization.max_steps or 0, kept.evaluation.patience
        limit = "patience" if patience and summary.steps < steps else "max_steps"  # What has ended it.
        if limit in longer:
            return merged
        raise AlreadyFinished(
            f"The run in {self.path} is finished, there is nothing to do: a larger --{limit.replace('_', '-')} than "
            f"{kept[limit]:,} trains it further, another --output starts over, and `evaluate` scores the model."
        )


class RunLogger:
    """Writes to the screen and to the log files of a run; disabled on all processes but the main one."""

    def __init__(self, directory: Path, *, enabled: bool) -> None:
        self.directory, self.enabled = directory, enabled

    def info(self, message: str, *, shown: bool = True) -> None:
        """Writes a message to the log and, if it is to be shown, to the screen."""
        if self.enabled:
            if shown:
                tqdm.write(message, file=sys.stderr)
            _append(self.directory / LOG, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}")

    def log_metrics(self, metrics: dict[str, float], message: str) -> None:
        """Appends a line to metrics.jsonl, and the message to the log and, where there is no bar, to the screen."""
        if self.enabled:
            _append(self.directory / METRICS, json.dumps(metrics))
            self.info(message, shown=not sys.stderr.isatty())

    def truncate_after(self, step: int) -> None:
        """Drops the records of steps that will be repeated."""
        file = self.directory / METRICS
        if self.enabled and file.exists():
            kept = [json.dumps(record) for record in read_metrics(self.directory) if record["step"] <= step]
            atomic_write_text(file, "".join(f"{line}\n" for line in kept))


def _append(file: Path, line: str) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")


def plot_learning_curves(records: Sequence[dict[str, float]], file: Path, unit: str) -> None:
    """Plots training loss, loss on `dev` and learning rate over the steps from the records of a metrics.jsonl.

    `unit` is the unit of the losses, such as nats per target token.
    """
    from matplotlib.figure import Figure  # It takes long to load.

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


def _plot(axes: "Axes", records: Sequence[dict[str, float]], field: str, label: str) -> None:
    points = [(record["step"], record[field]) for record in records if field in record]
    if points:
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, label=label, marker="." if len(points) < 20 else "")
        axes.legend()
        axes.grid(visible=True, alpha=0.3)
