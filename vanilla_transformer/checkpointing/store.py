"""Checkpoints that are complete or absent: written to a temporary directory, described by a manifest, then renamed."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from vanilla_transformer.atomic_files import PARTIAL, atomic_write_text, sync
from vanilla_transformer.checkpointing.averaging import WEIGHTS
from vanilla_transformer.fingerprints import checksum

MANIFEST = "manifest.json"
PROGRESS = "progress.json"
OPTIMIZER = "optimizer.bin"
RESUMABLE_KEPT = 2


class CheckpointError(OSError):
    """A checkpoint that cannot be written or read; the message is one sentence."""


@dataclass
class Progress:
    """The state of the training loop besides weights, optimizer and random states."""

    data: str = ""
    dev: str = ""
    step: int = 0
    epoch: int = 0
    part: int = 0
    step_in_part: int = 0
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
    """A checkpoint directory with its manifest; `resumable` ones also hold optimizer and random states."""

    path: Path
    step: int
    resumable: bool
    files: dict[str, dict[str, int | str]] = field(repr=False)

    def damage(self) -> str | None:
        """Names a fault in the files, or None: each must match its size and SHA-256 in the manifest."""
        for name, expected in self.files.items():
            file = self.path / name
            try:
                if file.stat().st_size != expected["bytes"]:
                    return f"{name} has {file.stat().st_size:,} bytes instead of {expected['bytes']:,}"
                if checksum(file) != expected["sha256"]:
                    return f"the contents of {name} have changed"
            except OSError as error:
                return f"{name} cannot be read ({error.strerror})"
        if self.resumable:
            try:
                self.progress()
            except (OSError, ValueError, TypeError):
                return f"{PROGRESS} is from another version of this package"
        return None

    def progress(self) -> Progress:
        """Returns the state of the loop when the checkpoint was written."""
        values = json.loads((self.path / PROGRESS).read_text())
        if "best_dev_nll" in values:  # The name in earlier versions.
            values["best_dev_loss"] = values.pop("best_dev_nll")
        if "step_in_epoch" in values:  # They planned each epoch as one part.
            values["step_in_part"] = values.pop("step_in_epoch")
        return Progress(**values)


def list_checkpoints(directory: Path, report: Callable[[str], None]) -> list[Checkpoint]:
    """Returns the checkpoints in `directory`, oldest first; invalid ones are reported."""
    checkpoints = []
    for path in sorted(directory.glob("step-*")):
        checkpoint = _read_manifest(path)
        if checkpoint is not None:
            checkpoints.append(checkpoint)
        else:
            report(f"Skipped checkpoint {path.name}: its {MANIFEST} is missing or damaged.")
    return checkpoints


def _read_manifest(path: Path) -> Checkpoint | None:
    """Returns the checkpoint described by a manifest, None if it is invalid: nothing else guards the manifest."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        step, resumable, files = manifest["step"], manifest["resumable"], manifest["files"]
        sound = (
            type(step) is int
            and step == _step_of(path)
            and type(resumable) is bool
            and {WEIGHTS, *((PROGRESS, OPTIMIZER) if resumable else ())} <= files.keys()
            and all(_is_inside(name) and type(file["bytes"]) is int and file["sha256"] for name, file in files.items())
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return Checkpoint(path, step, resumable, files) if sound else None


def weights_damage(path: Path) -> str | None:
    """Names a fault in the weights of a directory by their manifest; None if there is none, or no manifest."""
    if not (path / MANIFEST).is_file():
        return None
    checkpoint = _read_manifest(path)
    if checkpoint is None:
        return f"its {MANIFEST} is damaged"
    return dataclasses.replace(checkpoint, resumable=False, files={WEIGHTS: checkpoint.files[WEIGHTS]}).damage()


def _step_of(path: Path) -> int | None:
    """Returns the step in the name of a checkpoint, None for other names."""
    number = path.name.removeprefix("step-")
    return int(number) if number.isdecimal() and number.isascii() else None


def _is_inside(name: str) -> bool:
    """Tells whether a file name in a manifest stays inside the checkpoint, so that deleting it harms nothing else."""
    return bool(name) and not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts


def latest_complete_checkpoint(directory: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """Returns the latest resumable checkpoint whose files are all intact; skipped ones are reported.

    Raises:
        CheckpointError: There are checkpoints, but none to resume from. Nothing is deleted.
    """
    for checkpoint in reversed(list_checkpoints(directory, report)):
        if not checkpoint.resumable:
            continue
        damage = checkpoint.damage()
        if damage is None:
            return checkpoint
        report(f"Skipped checkpoint {checkpoint.path.name}: {damage}.")
    if has_checkpoints(directory):
        raise CheckpointError(
            f"None of the checkpoints in {directory} can be resumed, for the reasons above: restore the "
            "missing files, or use the version of this package that wrote them; to start over, delete the "
            "directory or choose another --output."
        )
    return None


def has_checkpoints(directory: Path) -> bool:
    """Tells whether anything in `directory` has the name of a checkpoint, complete or not."""
    return any(_step_of(path) is not None for path in directory.glob("step-*"))


def delete_checkpoints_after(directory: Path, step: int) -> None:
    """Deletes partially written checkpoints, and those after the step that the run resumes from."""
    remove_partial_files(directory)
    for path in directory.glob("step-*"):
        if (_step_of(path) or 0) > step:
            _remove(path)


def remove_partial_files(directory: Path) -> None:
    """Deletes the partial files of a killed run."""
    for path in directory.glob(f"{PARTIAL}*"):
        _delete(path)


def partial_path(directory: Path, step: int) -> Path:
    """Returns the directory in which the checkpoint of `step` is written until it is complete."""
    return directory / f"{PARTIAL}step-{step:08d}"


def commit_checkpoint(partial: Path, progress: Progress) -> Path:
    """Adds progress and manifest to the files in `partial`, syncs them to disk, and renames it to its final name."""
    (partial / PROGRESS).write_text(json.dumps(dataclasses.asdict(progress), indent=1))
    files: dict[str, dict[str, int | str]] = {}
    for file in filter(Path.is_file, partial.rglob("*")):
        sync(file)
        name = file.relative_to(partial).as_posix()
        files[name] = {"bytes": file.stat().st_size, "sha256": checksum(file)}
    _write_manifest(partial, progress.step, files, resumable=True)
    sync(partial)
    final = partial.with_name(partial.name.removeprefix(PARTIAL))
    partial.rename(final)
    sync(final.parent)
    return final


def checkpoints_to_average(
    directory: Path, save_steps: int, last_step: int | None, number: int, report: Callable[[str], None]
) -> list[Checkpoint]:
    """Returns the last `number` checkpoints for the average of section 6.1; invalid ones are reported.

    Only regular checkpoints and the one of the last step count: one written on a signal must not change the result.
    """
    checkpoints = list_checkpoints(directory, report)
    return [one for one in checkpoints if one.step % save_steps == 0 or one.step == last_step][-number:]


def prune_checkpoints(
    directory: Path, *, save_steps: int, last_step: int | None, averaged: int, doubling: bool = False
) -> None:
    """Keeps the last `averaged` checkpoints for the average, and the latest two to resume from.

    With `doubling`, those after 1, 2, 4, 8, ... times `save_steps` stay too, for later study. Checkpoints not kept to
    resume from lose everything but their weights.
    """

    def ignore(message: str) -> None:
        """Ignores damaged checkpoints, which were reported when the run started."""

    checkpoints = list_checkpoints(directory, ignore)
    resumable = [checkpoint for checkpoint in checkpoints if checkpoint.resumable][-RESUMABLE_KEPT:]
    weights = checkpoints_to_average(directory, save_steps, last_step, averaged, ignore)
    if doubling:
        weights += [
            one for one in checkpoints if one.step % save_steps == 0 and (one.step // save_steps).bit_count() == 1
        ]
    for checkpoint in checkpoints:
        if checkpoint in resumable:
            continue
        if checkpoint not in weights:
            _remove(checkpoint.path)
        elif checkpoint.resumable:
            _keep_weights_alone(checkpoint)


def _remove(path: Path) -> None:
    """Deletes a checkpoint such that a partially deleted one is never mistaken for a checkpoint."""
    doomed = path.with_name(PARTIAL + path.name)
    path.rename(doomed)
    _delete(doomed)


def _delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _keep_weights_alone(checkpoint: Checkpoint) -> None:
    weights = {WEIGHTS: checkpoint.files[WEIGHTS]}
    _write_manifest(checkpoint.path, checkpoint.step, weights, resumable=False)
    for name in checkpoint.files.keys() - {WEIGHTS}:
        (checkpoint.path / name).unlink(missing_ok=True)


def _write_manifest(path: Path, step: int, files: dict[str, dict[str, int | str]], *, resumable: bool) -> None:
    manifest = {"step": step, "resumable": resumable, "files": dict(sorted(files.items()))}
    atomic_write_text(path / MANIFEST, json.dumps(manifest, indent=1))
