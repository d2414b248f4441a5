"""Background checkpointing: training waits only for a copy of the state, and a thread writes it to disk."""

import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.accelerator import AcceleratedOptimizer, AcceleratedScheduler
from accelerate.checkpointing import save_accelerator_state
from accelerate.utils import OPTIMIZER_NAME, save
from torch.utils._pytree import tree_flatten, tree_unflatten

from vanilla_transformer.atomic_files import disk_error
from vanilla_transformer.checkpointing.averaging import WEIGHTS
from vanilla_transformer.checkpointing.store import (
    CheckpointError,
    Progress,
    commit_checkpoint,
    partial_path,
    remove_partial_files,
)


class CheckpointWriter:
    """Writes the checkpoints of a run, one at a time, each to a temporary directory until it is complete.

    The small part (schedule, random states) is written at once by `accelerate`, on every process. Weights and
    optimizer state are copied into buffers that are reused for every checkpoint; a thread of the main process writes
    the copy with `accelerate`'s own functions, so that its `load_state` reads everything back. `save_state` cannot do
    this, as it reads the random states when it writes.

    As a context manager it waits for the last checkpoint on exit. A failure of the thread is raised by the next method
    call.

    Args:
        model: The unwrapped model: each of its parameters is written once, under its own name.
        report: Called with messages for the user that are not failures.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        optimizer: AcceleratedOptimizer,
        schedule: AcceleratedScheduler,
        directory: Path,
        report: Callable[[str], None],
    ) -> None:
        self.accelerator, self.directory, self.report = accelerator, directory, report
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self._copy, self._synchronous = StateCopy(), False
        self._writing: Future[None] | None = None

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.wait()
        except CheckpointError as failure:
            if error is None:
                raise
            self.report(str(failure))  # The error that ended the run takes precedence.

    def save(self, progress: Progress, tidy_up: Callable[[], object]) -> None:
        """Starts writing a checkpoint, after which `tidy_up` is called; called by all processes at the same step.

        Raises:
            CheckpointError: This checkpoint or the previous one cannot be written. Its files are removed.
        """
        self.wait()
        unfinished, progress = partial_path(self.directory, progress.step), replace(progress)
        with self._explained(progress.step):
            if self.accelerator.is_main_process:
                remove_partial_files(self.directory)
                unfinished.mkdir(parents=True)
            self.accelerator.wait_for_everyone()
            write_large = self._begin(unfinished)
            self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:

            def work() -> None:
                with self._explained(progress.step):
                    write_large()
                    commit_checkpoint(unfinished, progress)
                    tidy_up()

            thread = ThreadPoolExecutor(1, "checkpoint")
            self._writing = thread.submit(work)
            thread.shutdown(wait=False)  # It ends with its work.
            if self._synchronous:
                self.wait()

    def wait(self) -> None:
        """Waits for the checkpoint that is being written, if any.

        Raises:
            CheckpointError: It cannot be written.
        """
        if self._writing is not None:
            wait([self._writing])
            done, self._writing = self._writing, None
            done.result()

    def raise_failure(self) -> None:
        """Raises the failure of the checkpoint that was being written, if any, without waiting."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def _begin(self, unfinished: Path) -> Callable[[], None]:
        """Writes the small part now, and returns a function that writes the rest."""
        accelerator = self.accelerator
        save_accelerator_state(
            str(unfinished), [], [], [self.schedule], [], accelerator.process_index, accelerator.step
        )
        if not accelerator.is_main_process:
            return lambda: None
        state = {
            "weights": OrderedDict((name, weight.detach()) for name, weight in self.model.named_parameters()),
            "optimizer": self.optimizer.state_dict(),
        }
        return partial(_write_large, state if self._synchronous else self._copied(state), unfinished)

    def _copied(self, state: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._copy.update(state)
        except (RuntimeError, MemoryError) as error:
            reason = " ".join(str(error).split())
            self.report(f"Checkpoints are written synchronously: no memory for a copy of the state ({reason}).")
            self._synchronous = True
            return state

    @contextmanager
    def _explained(self, step: int) -> Iterator[None]:
        """Turns the error of a disk that does not take the checkpoint in its body into one that says what to do."""
        try:
            yield
        except BaseException as error:
            said = disk_error(error, partial_path(self.directory, step))
            if said is None:
                raise
            reason = said.strerror or str(said)
            with suppress(OSError):  # The directory itself may be gone.
                remove_partial_files(self.directory)
                reason += f"; {shutil.disk_usage(self.directory.parent).free / 1e9:,.2f} GB are free"
            raise CheckpointError(
                f"The checkpoint of step {step:,} cannot be written to {self.directory} ({reason}): earlier "
                "checkpoints are intact; fix this and run the same command again to resume from the latest."
            ) from error


class StateCopy:
    """A copy of nested tensors in main memory whose buffers are reused.

    Allocating them takes seconds for a state of 0.75 GB, copying into them hundredths of a second.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def update(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns `state` with each tensor replaced by its copy, valid until the next call.

        Raises:
            RuntimeError, MemoryError: There is not enough memory.
        """
        leaves, structure = tree_flatten(state)
        places = [number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        tensors = [leaves[place] for place in places]
        if [(buffer.shape, buffer.dtype) for buffer in self._buffers] != [(one.shape, one.dtype) for one in tensors]:
            self._buffers = [_allocate_like(tensor) for tensor in tensors]
        for place, buffer, tensor in zip(places, self._buffers, tensors, strict=True):
            leaves[place] = buffer.copy_(tensor, non_blocking=True)
        if any(tensor.device.type != "cpu" for tensor in tensors):
            torch.accelerator.synchronize()
        return tree_unflatten(leaves, structure)


def _allocate_like(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a buffer for a copy, pinned for tensors on an accelerator, which makes the copy several times faster."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")


def _write_large(state: dict[str, Any], directory: Path) -> None:
    save(state["weights"], directory / WEIGHTS, safe_serialization=True)
    # When given a path, torch hides the system's message about a full disk.
    with (directory / f"{OPTIMIZER_NAME}.bin").open("wb") as file:
        save(state["optimizer"], file)
    # safetensors creates files that only their owner may read, whatever the umask.
    shutil.copymode(file.name, directory / WEIGHTS)
