"""Checkpoints of a run, complete or absent: written beside, flushed to disk, then renamed; and their mean (6.1)."""

import dataclasses
import json
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from vanilla_transformer.atomic_files import PARTIAL, atomic_write_text, copy_permissions, sync
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
    """A checkpoint directory, with the progress of its run."""

    path: Path
    progress: Progress

    @property
    def step(self) -> int:
        """Returns the number of steps done."""
        return self.progress.step

    @property
    def resumable(self) -> bool:
        """Tells whether it also holds the optimizer and the random states."""
        return (self.path / OPTIMIZER).is_file()

    def keep_weights_alone(self) -> None:
        """Deletes all that only a resumed run needs, the optimizer last: after a kill the rest goes the next time."""
        for file in sorted(self.path.iterdir(), key=lambda file: file.name == OPTIMIZER):
            if file.name not in (WEIGHTS, STATE):
                file.unlink()


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
    copy_permissions(partial / OPTIMIZER, partial / WEIGHTS)
    files = [file for file in partial.iterdir() if file.is_file()]
    for file in files:
        sync(file)
    atomic_write_text(partial / STATE, json.dumps({"progress": dataclasses.asdict(progress)}, indent=1))
    sync(partial)
    partial.rename(partial.with_name(partial.name.removeprefix(PARTIAL)))
    sync(partial.parent)


def _cannot_write(directory: Path, step: int, error: Exception) -> RunError:
    reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
    if re.search("inline_container|PytorchStreamWriter|iostream", reason):
        reason = "torch could not write a file in full; the disk may be full"  # torch loses the system's own reason.
    with suppress(OSError):  # The directory itself may be gone.
        remove_partial_files(directory)
    return RunError(
        f"The checkpoint of step {step:,} cannot be written to {directory} ({reason}): earlier checkpoints are "
        "intact; fix this and run the same command again to resume from the latest."
    )


def load_checkpoint(accelerator: "Accelerator", checkpoint: Checkpoint) -> None:
    """Restores weights, optimizer, schedule and random states; called by all processes."""
    from accelerate.utils import load
    from accelerate.utils.constants import RNG_STATE_NAME

    random = checkpoint.path / f"{RNG_STATE_NAME}_{accelerator.process_index}.pkl"
    try:
        if accelerator.process_index < checkpoint.progress.processes:  # The run may resume with more processes.
            load(random)  # If it is missing, `load_state` would continue with other random numbers.
        accelerator.load_state(str(checkpoint.path))
    except (FileNotFoundError, RuntimeError, EOFError, UnpicklingError) as error:
        raise _unreadable(checkpoint.path, error) from error


def list_checkpoints(directory: Path) -> list[Checkpoint]:
    """Returns the checkpoints in `directory`, oldest first."""
    checkpoints = []
    for file in sorted(directory.glob(f"step-*/{STATE}")):
        try:
            checkpoints.append(Checkpoint(file.parent, Progress(**json.loads(file.read_bytes())["progress"])))
        except (ValueError, TypeError, LookupError) as error:
            raise _unreadable(file.parent, error) from error
    return checkpoints


def _unreadable(checkpoint: Path, error: Exception) -> RunError:
    reason = str(error).partition("\n")[0]
    return RunError(f"{checkpoint} cannot be read ({reason}): delete it to resume from the checkpoint before it.")


def has_checkpoints(directory: Path) -> bool:
    """Tells whether there is a checkpoint in `directory`."""
    return any(directory.glob(f"step-*/{STATE}"))


def latest_checkpoint(directory: Path) -> Checkpoint | None:
    """Returns the latest checkpoint to resume from; None before the first."""
    checkpoints = list_checkpoints(directory)
    resumable = [one for one in checkpoints if one.resumable]
    if checkpoints and not resumable:
        raise RunError(
            f"None of the checkpoints in {directory} has its {OPTIMIZER}: restore the files, or to start over choose "
            "another --output."
        )
    return resumable[-1] if resumable else None


def delete_checkpoints_after(directory: Path, step: int) -> None:
    """Deletes partially written checkpoints, and those after the step that the run resumes from."""
    remove_partial_files(directory)
    for checkpoint in list_checkpoints(directory):
        if checkpoint.step > step:
            _delete(checkpoint.path)


def remove_partial_files(directory: Path) -> None:
    """Deletes the partial files of a killed run."""
    for path in directory.glob(f"{PARTIAL}*"):
        _delete(path)


def checkpoints_to_average(directory: Path, save_steps: int, last_step: int | None, number: int) -> list[Checkpoint]:
    """Returns the last `number` checkpoints for the average of section 6.1.

    Only regular checkpoints and the one of the last step count: one written on a signal must not change the result.
    """
    return _regular(list_checkpoints(directory), save_steps, last_step)[-number:]


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
