"""Fully sharded data parallel: a process holds a part of every weight and of its moments; checkpoints hold them whole.

So a run that is sharded goes on with any number of processes, sharded or not.
"""

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.checkpointing import load_accelerator_state
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import OPTIMIZER_NAME, DistributedType
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel

from vanilla_transformer.checkpointing.averaging import read_weights


def is_sharded(accelerator: Accelerator) -> bool:
    """Whether a process holds only a part of the weights."""
    return accelerator.distributed_type == DistributedType.FSDP


def shard(model: PreTrainedModel, accelerator: Accelerator) -> None:
    """Divides the weights among the processes, in place, layer by layer; to be called before there is an optimizer.

    Deviation from accelerate's own division, which makes one unit of two of the modules that share the embedding and
    leaves the third to another: torch refuses that. Here the embedding belongs to the whole model.
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
    # All is divided, and accelerate must not look for layers, whose classes have other names by now.
    plugin.auto_wrap_policy = None


def gather_full_state(state: dict[str, Any], *, keep: bool) -> dict[str, Any]:
    """`state` with each divided tensor put together, in main memory; all processes call it, for those that keep it.

    Elsewhere nothing is left in the place of such a tensor, so that one machine holds the whole state once.
    """

    def put_together(value: Any) -> Any:
        if not isinstance(value, DTensor):
            return value
        tensor = value.full_tensor()
        return tensor.cpu() if keep else None

    return tree_map(put_together, state)


@torch.no_grad()
def load_full_state(
    directory: Path,
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: AcceleratedOptimizer,
    schedule: AcceleratedScheduler,
) -> None:
    """Takes from a checkpoint what this process holds of its weights and moments, and the rest as it is."""
    weights = read_weights(directory)
    for name, parameter in model.named_parameters():
        parameter.copy_(_divided_as(parameter, weights[name]))
    moments = torch.load(directory / f"{OPTIMIZER_NAME}.bin", map_location="cpu", weights_only=True)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, state in moments["state"].items():
        for name, value in state.items():
            if value.shape == parameters[number].shape:
                state[name] = _divided_as(parameters[number], value)
    optimizer.load_state_dict(moments)
    load_accelerator_state(str(directory), [], [], [schedule], [], accelerator.process_index)


def _divided_as(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements)
