"""Checkpoints of a run, complete or absent: written beside, flushed to disk, then renamed; and their mean (6.1)."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from vanilla_transformer.atomic_files import PARTIAL, atomic_write_text, sync
from vanilla_transformer.errors import RunError

if TYPE_CHECKING:
    from accelerate import Accelerator

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.bin", "checkpoint.json"
# To go on from the one before, should the latest be damaged.
RESUMABLE_KEPT = 2


@dataclass
class Progress:
    """The state of the training loop besides weights, optimizer and random states."""

    data: str = ""
    dev: str = ""
    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    target_tokens: int = 0
    seconds: float = 0.0
    window_loss: float = 0.0
    window_tokens: int = 0
    window_seconds: float = 0.0
    best_dev_loss: float | None = None
    best_step: int = 0
    evaluations_without_gain: int = 0
    processes: int = 1


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory, with the progress of its run and the sizes of its files in bytes."""

    path: Path
    progress: Progress
    files: dict[str, int]

    @property
    def step(self) -> int:
        """Returns the number of steps done."""
        return self.progress.step

    @property
    def resumable(self) -> bool:
        """Tells whether it also holds the optimizer and the random states."""
        return OPTIMIZER in self.files

    def damage(self) -> str | None:
        """Names a file that is missing or cut, or None."""
        for name, size in self.files.items():
            try:
                found = (self.path / name).stat().st_size
            except OSError as error:
                return f"{name} cannot be read ({error.strerror})"
            if found != size:
                return f"{name} has {found:,} bytes instead of {size:,}"
        return None

    def keep_weights_alone(self) -> None:
        """Deletes all that only a resumed run needs."""
        _write_state(self.path, self.progress, [self.path / WEIGHTS])
        for name in self.files.keys() - {WEIGHTS}:
            (self.path / name).unlink(missing_ok=True)


def save_plain_weights(accelerator: "Accelerator", model: torch.nn.Module) -> None:
    """Makes the accelerator's checkpoints hold each weight of `model` once, under its own name, whatever wraps it."""

    def save(models: list[torch.nn.Module], states: list[dict[str, torch.Tensor]], directory: str) -> None:
        states[:] = [{name: weight.detach() for name, weight in model.named_parameters()}]

    def load(models: list[torch.nn.Module], directory: str) -> None:
        load_average(model, [Path(directory)])
        models.clear()

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


def save_checkpoint(accelerator: "Accelerator", directory: Path, progress: Progress) -> None:
    """Writes a checkpoint; called by all processes at the same step."""
    partial = directory / f"{PARTIAL}step-{progress.step:08d}"
    if accelerator.is_main_process:
        remove_partial_files(directory)
        partial.mkdir(parents=True)
    accelerator.wait_for_everyone()
    try:
        accelerator.save_state(str(partial))
    except Exception as error:
        raise _cannot_write(directory, progress.step, error) from error
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        try:
            _commit(partial, progress)
        except OSError as error:
            raise _cannot_write(directory, progress.step, error) from error


def _commit(partial: Path, progress: Progress) -> None:
    # safetensors creates files that only their owner may read, whatever the umask.
    shutil.copymode(partial / OPTIMIZER, partial / WEIGHTS)
    files = [file for file in partial.iterdir() if file.is_file()]
    for file in files:
        sync(file)
    _write_state(partial, progress, files)
    sync(partial)
    partial.rename(partial.with_name(partial.name.removeprefix(PARTIAL)))
    sync(partial.parent)


def _write_state(directory: Path, progress: Progress, files: list[Path]) -> None:
    state = {"progress": dataclasses.asdict(progress), "files": {file.name: file.stat().st_size for file in files}}
    atomic_write_text(directory / STATE, json.dumps(state, indent=1))


def _cannot_write(directory: Path, step: int, error: Exception) -> RunError:
    reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
    with suppress(OSError):  # The directory itself may be gone.
        remove_partial_files(directory)
    return RunError(
        f"The checkpoint of step {step:,} cannot be written to {directory} ({reason}): earlier checkpoints are "
        "intact; fix this and run the same command again to resume from the latest."
    )


def list_checkpoints(directory: Path, report: Callable[[str], None] = lambda message: None) -> list[Checkpoint]:
    """Returns the checkpoints in `directory`, oldest first; what looks like one and is none is reported."""
    checkpoints = []
    for path in _paths(directory):
        try:
            state = json.loads((path / STATE).read_text(encoding="utf-8"))
            checkpoints.append(Checkpoint(path, Progress(**state["progress"]), state["files"]))
        except (OSError, ValueError, TypeError, LookupError):
            report(f"Skipped checkpoint {path.name}: its {STATE} is missing or damaged.")
    return checkpoints


def _paths(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.glob("step-*")) if path.name.removeprefix("step-").isdecimal()]


def has_checkpoints(directory: Path) -> bool:
    """Tells whether anything in `directory` has the name of a checkpoint, complete or not."""
    return bool(_paths(directory))


def latest_checkpoint(directory: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """Returns the latest checkpoint to resume from whose files are all there; skipped ones are reported."""
    for checkpoint in reversed(list_checkpoints(directory, report)):
        if not checkpoint.resumable:
            continue
        damage = checkpoint.damage()
        if damage is None:
            return checkpoint
        report(f"Skipped checkpoint {checkpoint.path.name}: {damage}.")
    if has_checkpoints(directory):
        raise RunError(
            f"None of the checkpoints in {directory} can be resumed, for the reasons above: restore the missing "
            "files; to start over, delete the directory or choose another --output."
        )
    return None


def delete_checkpoints_after(directory: Path, step: int) -> None:
    """Deletes partially written checkpoints, and those after the step that the run resumes from."""
    remove_partial_files(directory)
    for path in _paths(directory):
        if int(path.name.removeprefix("step-")) > step:
            _delete(path)


def remove_partial_files(directory: Path) -> None:
    """Deletes the partial files of a killed run."""
    for path in directory.glob(f"{PARTIAL}*"):
        _delete(path)


def checkpoints_to_average(
    directory: Path, save_steps: int, last_step: int | None, number: int, report: Callable[[str], None]
) -> list[Checkpoint]:
    """Returns the last `number` checkpoints for the average of section 6.1.

    Only regular checkpoints and the one of the last step count: one written on a signal must not change the result.
    """
    return _regular(list_checkpoints(directory, report), save_steps, last_step)[-number:]


def _regular(checkpoints: list[Checkpoint], save_steps: int, last_step: int | None) -> list[Checkpoint]:
    return [one for one in checkpoints if one.step % save_steps == 0 or one.step == last_step]


def prune_checkpoints(
    directory: Path,
    *,
    save_steps: int,
    last_step: int | None,
    averaged: int,
    best: int | None = None,
    doubling: bool = False,
) -> None:
    """Keeps the last `averaged` checkpoints for the average, that of step `best`, and the latest two to resume from.

    With `doubling`, those after 1, 2, 4, 8, ... times `save_steps` stay too, for later study. Checkpoints not kept to
    resume from lose everything but their weights.
    """
    checkpoints = list_checkpoints(directory)
    resumable = [one for one in checkpoints if one.resumable][-RESUMABLE_KEPT:]
    weights = _regular(checkpoints, save_steps, last_step)[-averaged:]
    weights += [one for one in checkpoints if one.step == best]
    if doubling:
        weights += [
            one for one in _regular(checkpoints, save_steps, None) if (one.step // save_steps).bit_count() == 1
        ]
    for checkpoint in checkpoints:
        if checkpoint not in resumable and checkpoint not in weights:
            _delete(checkpoint.path)
        elif checkpoint not in resumable and checkpoint.resumable:
            checkpoint.keep_weights_alone()


def _delete(path: Path) -> None:
    """Deletes a file or directory such that a partially deleted one is never mistaken for a checkpoint."""
    if not path.name.startswith(PARTIAL):
        path = path.rename(path.with_name(PARTIAL + path.name))
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def load_average(model: torch.nn.Module, checkpoints: Sequence[Path]) -> None:
    """Section 6.1: loads the mean of the weights of checkpoints, summed in float64, into a model."""
    if not checkpoints:
        raise RunError("There are no checkpoints to average.")
    total: dict[str, torch.Tensor] = {}
    for path in checkpoints:
        for name, weight in _read_weights(path, model).items():
            total[name] = total[name] + weight if name in total else weight.double()
    model.load_state_dict({name: weight / len(checkpoints) for name, weight in total.items()}, strict=False)


def _read_weights(path: Path, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    try:
        weights = load_file(path / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"The weights {path / WEIGHTS} cannot be read: {error}; restore the file, or delete its directory."
        ) from None
    found, wanted = (
        {(name, tuple(weight.shape)) for name, weight in tensors}
        for tensors in (weights.items(), model.named_parameters())
    )
    if found != wanted:
        name, shape = min(found ^ wanted)
        raise RunError(f"{path} is of another model: only one of them has {name} with the shape {shape}.")
    return weights
