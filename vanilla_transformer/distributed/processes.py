"""Several processes in one run: their start, and checks that all do the same run."""

import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from accelerate.utils import DistributedDataParallelKwargs, ProjectConfiguration

from vanilla_transformer.distributed.peers import LaunchError, Peers
from vanilla_transformer.recipe.schema import Recipe, in_words

# Seconds until a file written by one machine is visible to the others.
LONGEST_DELAY = 60.0
# The directory in a run's output in which trackers write their files.
TRACKER_FILES = "trackers"


def start_accelerator(trackers: list[str | GeneralTracker], output: Path, peers: Peers) -> Accelerator:
    """Forms the group with the other processes, if any, and finds this one's device."""
    peers.form_group()
    return Accelerator(
        # By default accelerate treats several processes without accelerators as separate runs of one process.
        cpu=not torch.accelerator.is_available(),
        log_with=trackers or None,
        project_config=ProjectConfiguration(project_dir=str(output), logging_dir=str(output / TRACKER_FILES)),
        step_scheduler_with_optimizer=False,
        # Gradients stay in the exchange buffers, and exist only once.
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )


def check_launch() -> None:
    """Finds mistakes in how the processes were started, before they wait for each other.

    Raises:
        LaunchError: Each would train by itself, or hold a part of the weights only.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise LaunchError(
            "Each process holds all weights: start without FSDP, as `accelerate launch --multi_gpu` does."
        )
    asked = int(os.environ.get("WORLD_SIZE", 1))
    if asked > 1 and "LOCAL_RANK" not in os.environ:
        raise LaunchError(
            f"WORLD_SIZE asks for {asked} processes, but this one cannot find the others: set LOCAL_RANK to "
            "its number on this machine, as well as RANK, MASTER_ADDR and MASTER_PORT."
        )
    # Only these two reveal how many processes `accelerate launch` was to start.
    by_accelerate, for_several = "ACCELERATE_MIXED_PRECISION" in os.environ, "MASTER_ADDR" in os.environ
    if by_accelerate and for_several and "LOCAL_RANK" not in os.environ:
        raise LaunchError(
            "accelerate launch was asked for several processes but started only one: without several "
            "accelerators it leaves that to MPI. Use `accelerate launch --multi_gpu --num_processes N`, "
            "which on a machine without accelerators starts N processes on the CPU, or `torchrun "
            "--nproc_per_node N`, or ask for one process."
        )


def check_same_recipe(peers: Peers, recipe: Recipe) -> None:
    """Ends the run if the processes were started with different recipes or options."""
    peers.check_same(
        {name: in_words(value) for name, value in recipe.options.items()},
        "{process} was started with {name} {theirs}, the main process with {ours}: give all the same command, and "
        "the same recipe if it is a file.",
    )


def check_same_output(peers: Peers, recipe_file: Path) -> None:
    """Ends the run if a process does not see the main one's newest file in the output directory."""
    written = peers.broadcast_from_main(lambda: _mark(recipe_file))
    end = time.monotonic() + LONGEST_DELAY
    while (seen := _mark(recipe_file)) != written and time.monotonic() < end:
        time.sleep(0.2)
    peers.check_same(
        {"output": seen == written},
        f"{{process}} does not see the output directory {recipe_file.parent} of the main process: name one on a "
        "disk that all machines share.",
    )


def _mark(file: Path) -> tuple[str, int] | None:
    """Distinguishes this output directory from those of the same name on other machines' disks."""
    try:
        return file.read_text(encoding="utf-8"), file.stat().st_mtime_ns
    except OSError:
        return None


def check_same_data(peers: Peers, fingerprints: dict[str, str]) -> None:
    """Ends the run if a process reads other pairs than the main one."""
    peers.check_same(
        fingerprints,
        "{process} reads other pairs for {name} than the main process: the files must be the same on all machines.",
    )
