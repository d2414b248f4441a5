"""Fully sharded data parallel: each process holds a shard of weights and optimizer, checkpoints hold them in full.

So a sharded run can resume with any number of processes, sharded or not.
"""

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.checkpointing import load_accelerator_state
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import OPTIMIZER_NAME, DistributedType
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from vanilla_transformer.checkpointing.averaging import read_weights


def is_sharded(accelerator: Accelerator) -> bool:
    """Tells whether each process holds only a shard of the weights."""
    return accelerator.distributed_type == DistributedType.FSDP


def shard(model: PreTrainedModel, accelerator: Accelerator) -> None:
    """Shards the weights among the processes, in place, layer by layer; call it before creating the optimizer.

    accelerate's own wrapping puts two of the modules that share the embedding into one unit and the third into
    another, which torch refuses. Here the embedding belongs to the root.
    """
    plugin = accelerator.state.fsdp_plugin
    settings: dict[str, Any] = {
        "offload_policy": plugin.cpu_offload,
        "mp_policy": plugin.mixed_precision_policy or MixedPrecisionPolicy(),
    }
    layers = [module for module in model.modules() if type(module).__name__ in (model._no_split_modules or ())]
    for layer in layers:
        fully_shard(layer, reshard_after_forward=plugin.reshard_after_forward, **settings)
    fully_shard(model, **settings)
    # Everything is sharded: accelerate must not look for layers, whose classes have other names by now.
    plugin.auto_wrap_policy = None


# The options under which the main process alone holds the full state, after gathering and before loading.
_GATHERED = StateDictOptions(full_state_dict=True, cpu_offload=True)
_FROM_MAIN = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def gather_full_state(model: torch.nn.Module, optimizer: AcceleratedOptimizer) -> dict[str, Any]:
    """Gathers weights and optimizer state as without sharding, on the main process; all processes call it."""
    weights, state = get_state_dict(model, optimizer.optimizer, options=_GATHERED)
    if not weights:
        return {}
    # torch lists tied weights twice and does not number them; checkpoints of any run list them once, with numbers.
    numbers = {name: number for number, (name, _) in enumerate(model.named_parameters())}
    return {
        "weights": OrderedDict((name, weights[name]) for name in numbers),
        "optimizer": _with_parameters(state, numbers),
    }


def load_full_state(
    directory: Path,
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: AcceleratedOptimizer,
    schedule: AcceleratedScheduler,
) -> None:
    """Loads a checkpoint: the main process reads it and sends each process its shard; random states are its own.

    Weights and optimizer state are set one after the other: `set_state_dict` expects no weights from a process that
    gives none, and the main process would wait for them.
    """
    weights: dict[str, Any] = {}
    state: dict[str, Any] = {}
    if accelerator.is_main_process:
        saved = read_weights(directory)
        name_of = {parameter: name for name, parameter in model.named_parameters()}
        every = model.named_parameters(remove_duplicate=False)
        weights = {name: saved[name_of[parameter]] for name, parameter in every}
        numbered = torch.load(directory / f"{OPTIMIZER_NAME}.bin", map_location="cpu", weights_only=True)
        state = _with_parameters(numbered, dict(enumerate(name_of.values())))
    set_model_state_dict(model, weights, options=_FROM_MAIN)
    set_optimizer_state_dict(model, optimizer.optimizer, state, options=_FROM_MAIN)
    load_accelerator_state(str(directory), [], [], [schedule], [], accelerator.process_index)


def _with_parameters(state: Mapping[str, Any], names: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns an optimizer's state with other names, or numbers, of its parameters."""
    return {
        "state": {names[parameter]: values for parameter, values in state["state"].items()},
        "param_groups": [
            {**group, "params": [names[parameter] for parameter in group["params"]]} for group in state["param_groups"]
        ],
    }
