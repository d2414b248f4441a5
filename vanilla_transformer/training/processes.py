"""The processes of a run, started by torch's elastic launcher, here or by torchrun: how they begin, meet and end."""

import ctypes
import logging
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NoReturn, Self, TypeVar

import psutil
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import (
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    ProjectConfiguration,
    broadcast_object_list,
    patch_environment,
)
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from vanilla_transformer.errors import RunError, SettingError
from vanilla_transformer.evaluation import ALONE, Processes
from vanilla_transformer.machine import OWN_LAUNCHER, own_threads, usable_cores
from vanilla_transformer.model_directory import CHECKPOINTS, RECIPE
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe, Run
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training.choices import chooses_steps

Result = TypeVar("Result")
# In fewer steps starting another process costs as much as it gains. In few minutes a translator learns more in one, of
# twice as many steps: after 5 of two cores 20,000 pairs of Tatoeba give 20.3 sacreBLEU, in two processes 19.4.
MIN_STEPS, FEW_MINUTES = 1_000, 10
# Bytes of main memory for two processes: in each, Python with its libraries takes half a gigabyte, a small model and
# its batch as much.
MIN_MEMORY = 4 << 30
# How long processes wait for one that prepares the text or scores the model.
PREPARATION_LIMIT = timedelta(days=7)
# The exit code of a process that has lost contact with the others: the launcher knows why.
_LOST = 75
# A worker takes the code from where its launcher has it, wherever it was started, and ends silently on Ctrl-C.
_WORKER = """\
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
sys.path[:] = {path!r}
from vanilla_transformer.cli import main
sys.exit(main(sys.argv[1:]))
"""


def is_main_process() -> bool:
    """Tells whether this process prepares, writes and prints for all those of its run."""
    return int(os.environ.get("RANK") or 0) == 0


def is_launched() -> bool:
    """Tells whether a launcher started this process, and so decides the number of processes."""
    return any(map(os.environ.get, ("WORLD_SIZE", "RANK", "LOCAL_RANK", "ACCELERATE_MIXED_PRECISION")))


def processes_for(recipe: Recipe) -> int:
    """Returns the number of processes that `train` starts for a run: one if a launcher starts the others.

    A resumed run keeps its number, because the weights depend on it.
    """
    if is_launched():
        return 1
    devices = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if devices and (recipe.run.processes or 1) > devices:
        raise SettingError(
            f"processes is {recipe.run.processes}, but each needs an accelerator of its own, and there are {devices}: "
            "give that number or less."
        )
    output = Path(recipe.run.output or "")
    if recipe.run.processes is None and recipe.run.output and any(output.glob(f"{CHECKPOINTS}/step-*")):
        with suppress(SettingError):  # The error is reported when the directory is opened.
            # The run may have begun on other machines.
            return min(load_recipe(output / RECIPE).run.processes or 1, devices or usable_cores())
    if devices:
        return recipe.run.processes or (devices if sys.platform == "linux" else 1)
    # Other systems and more processes have not been measured; of three threads, one would be idle.
    suits = sys.platform == "linux" and own_threads() not in (1, 3) and psutil.virtual_memory().total >= MIN_MEMORY
    steps, minutes = recipe.optimization.max_steps or math.inf, recipe.optimization.max_minutes or math.inf
    short = steps < MIN_STEPS or (minutes <= FEW_MINUTES and chooses_steps(recipe, get_task(recipe.data.task)))
    return recipe.run.processes or (2 if suits and not short else 1)


def launch(number: int, recipe: Recipe, *options: str) -> None:
    """Runs `train` by a recipe in several processes that share this machine, by torch's elastic launcher."""
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # If a terminal closes, the processes save and end, but not under nohup, which ignores the signal.
    hangs_up = hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    with TemporaryDirectory(prefix="vanilla-transformer-") as folder, _without_logging():
        file = Path(folder, "recipe.yaml")
        file.write_text(recipe.to_yaml(), encoding="utf-8")
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=number,
            run_id=OWN_LAUNCHER,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(folder, redirects=dict.fromkeys(range(1, number), Std.ALL)),
            signals_to_handle=",".join(["SIGTERM", "SIGINT", *["SIGHUP"] * hangs_up]),
            # The processes finish a step, or an evaluation, and write a checkpoint.
            shutdown_timeout=int(recipe.run.process_timeout),
        )
        code = _WORKER.format(path=sys.path)
        words = [*subprocess._args_from_interpreter_flags(), "-P", "-c", code, "train", file, *options]  # type: ignore
        with patch_environment(OMP_NUM_THREADS=max(1, own_threads() // number)):
            try:
                elastic_launch(config, sys.executable)(*words)
            except SignalException as stopped:
                for signum in map(signal.Signals.__getitem__, config.signals_to_handle.split(",")):
                    signal.signal(signum, signal.SIG_IGN)  # The processes have ended, and so does this one now.
                raise SystemExit(128 + stopped.sigval) from None
            except ChildFailedError as error:
                _explain(error.failures, number, Path(folder))


@contextmanager
def _without_logging() -> Iterator[None]:
    """Turns off logging in the body, because the launcher would report each process that ends."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _explain(failures: dict[int, ProcessFailure], number: int, logs: Path) -> NoReturn:
    """Raises an error about the process that ended first, unless the main one has printed why it did."""
    again = "run the same command again to continue from the last checkpoint"
    for rank, failure in failures.items():
        # The launcher ends the others by SIGTERM.
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
            raise RunError(
                f"Process {rank} of {number} was killed by {failure.signal_name()}: {again}; if memory is short, "
                "--processes 1 needs less."
            )
    for rank, failure in sorted(failures.items()):
        if failure.exitcode > 0 and failure.exitcode != _LOST:
            if rank == 0:
                raise SystemExit(failure.exitcode)
            printed = next(logs.glob(f"*/*/{rank}/stderr.log")).read_text(encoding="utf-8")
            _, found, reason = printed.rpartition("error: ")
            reason = reason.partition("\n")[0] if found else printed.strip().rpartition("\n")[2]
            raise RunError(f"Process {rank} of {number} has failed: {reason}")
    raise RunError(f"The {number} processes of the run have lost contact with each other: {again}.")


def end_with_launcher() -> None:
    """Has the system end this worker with its launcher: it has a session of its own, so nothing else would."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        set_parent_death_signal = 1  # From Linux's sys/prctl.h.
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)


@contextmanager
def explain_lost_processes() -> Iterator[None]:
    """Turns an error of gloo, NCCL or the store about silent processes into one that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.distributed.DistError) and not re.search(
            "(?i)gloo|nccl|connection", str(error)
        ):
            raise
        if os.environ.get("TORCHELASTIC_RUN_ID") == OWN_LAUNCHER:
            raise SystemExit(_LOST) from error
        raise RunError(
            "Another process of this run is missing, has died or hangs: see the first failure that its launcher "
            "reports, and run the same command again to continue from the last checkpoint. "
            f"({str(error).partition(chr(10))[0].rstrip('.')})"
        ) from error


def form_groups(settings: Run) -> Processes:
    """Forms the group of the processes, which wait for each other for a limited time, and one that exchanges objects.

    In that one they wait as long as it takes to prepare the text, or to write and score a model, unless one of them
    dies.
    """
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if size == 1:
        return ALONE
    rank, limit = int(os.environ["RANK"]), timedelta(seconds=settings.process_timeout)
    store: torch.distributed.Store = next(torch.distributed.rendezvous("env://", timeout=limit))[0]
    # A launcher keeps its store when it starts the processes again: they must not find what the dead ones wrote.
    store = torch.distributed.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    torch.distributed.init_process_group(store=store, rank=rank, world_size=size, timeout=limit)
    patient = torch.distributed.new_group(backend="gloo", timeout=PREPARATION_LIMIT)
    # When gloo's group ends, it waits for its threads while holding Python's lock, and one of them may wait for that
    # lock, so that it would never finish.
    for group in (torch.distributed.group.WORLD, patient):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))

    def gather(one: object) -> list[Any]:
        every: list[Any] = [None] * size
        torch.distributed.all_gather_object(every, one, group=patient)
        return every

    return Processes(rank, size, gather)


@contextmanager
def start_accelerator(settings: Run) -> Iterator[Accelerator]:
    """Finds the device. Settings that another `Accelerator` or `Trainer` made in this process return afterwards."""
    states = {kind: dict(kind._shared_state) for kind in (PartialState, AcceleratorState, GradientState)}
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    try:
        yield _accelerator(settings)
    finally:
        for kind, state in states.items():
            kind._shared_state.clear()
            kind._shared_state.update(state)


def _accelerator(settings: Run) -> Accelerator:
    return Accelerator(
        # By default accelerate treats several processes without accelerators as separate runs of one process.
        cpu=not torch.accelerator.is_available(),
        log_with=list(settings.trackers) or None,
        project_config=ProjectConfiguration(project_dir=settings.output, logging_dir=f"{settings.output}/trackers"),
        step_scheduler_with_optimizer=False,
        # What is not given is read from variables that `accelerate launch` sets: the recipe alone decides.
        mixed_precision="no",
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        dynamo_backend="no",
        # Gradients stay in the exchange buffers, and exist only once.
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )


def from_main_process(work: Callable[[], Result]) -> Result:
    """Returns the result of `work` on the main process of a group, sent to all others."""
    results: list[object] = [work() if is_main_process() else None]
    return broadcast_object_list(results)[0]


def check_launch() -> None:
    """Finds a mistake in the start of processes, by which each would train by itself, or a part of the weights."""
    # Only these two reveal how many processes `accelerate launch` was to start.
    for_several = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ
    alone = "LOCAL_RANK" not in os.environ and (for_several or int(os.environ.get("WORLD_SIZE") or 1) > 1)
    in_parts = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG")
    if alone or any(os.environ.get(f"ACCELERATE_USE_{one}") == "true" for one in in_parts):
        raise SettingError(
            "Several processes were requested, but each would train by itself or on a part of the weights: use "
            "`accelerate launch --multi_gpu --num_processes N` without FSDP or DeepSpeed, on a CPU too, or `torchrun "
            "--nproc_per_node N`."
        )
    for name in ("RANK", "LOCAL_RANK"):
        if os.environ.get(name) and not os.environ.get("WORLD_SIZE"):
            raise SettingError(
                f"{name} is set without WORLD_SIZE: start all processes by a launcher such as torchrun, or unset it."
            )


class StopRequest:
    """Remembers the first signal to stop, 0 before that.

    In its block SIGTERM, SIGHUP and Ctrl-C are only recorded. An ignored SIGHUP stays ignored, as under nohup, and one
    that the program around Python handles stays with it.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Handles a signal; a second Ctrl-C ends the process without waiting.

        Another SIGTERM may be the launcher's beside that of a system that stops all processes.
        """
        if self.signal and signum == signal.SIGINT:
            signal.signal(signum, signal.SIG_IGN)  # A third Ctrl-C would interrupt the end.
            raise KeyboardInterrupt
        self.signal = self.signal or signum

    def __enter__(self) -> Self:
        # Outside the main thread Python allows no handlers, and Windows has no SIGHUP. A handler of the program that
        # Python is embedded in shows as None, and could not be restored.
        with suppress(ValueError):
            for signum in (getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)):
                left_alone = (None,) if signum == signal.SIGINT else (None, signal.SIG_IGN)
                if signal.getsignal(signum) not in left_alone:
                    self._previous[signum] = signal.signal(signum, self)
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
