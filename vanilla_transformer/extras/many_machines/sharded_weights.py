"""Fully sharded data parallel: each process holds a shard of weights and optimizer, checkpoints hold them in full.

So a sharded run can resume with any number of processes, sharded or not.
"""

import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import OPTIMIZER_NAME, DistributedType, FullyShardedDataParallelPlugin
from transformers import PreTrainedModel

from vanilla_transformer.checkpointing.averaging import read_weights
from vanilla_transformer.distributed.peers import LaunchError


def requested_sharding() -> "ShardedWeights | None":
    """Returns the sharding set by the variables of `accelerate launch --use_fsdp`; None without them.

    Raises:
        LaunchError: The weights cannot be sharded as requested.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() != "true" or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        os.environ.pop("ACCELERATE_USE_FSDP", None)
        return None
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise LaunchError("Only FSDP 2 can shard the weights: use accelerate launch --fsdp_version 2.")
    sharding = ShardedWeights()
    if sharding.activation_checkpointing:
        raise LaunchError(
            "Activations cannot be recomputed in the backward pass: leave fsdp_activation_checkpointing "
            "out, and raise --batches-per-step for smaller batches."
        )
    return sharding


class ShardedWeights(FullyShardedDataParallelPlugin):
    """The settings of sharding, as accelerate reads them, and the steps of a run in which shards make a difference."""

    def start(self, accelerator: Accelerator) -> None:
        """Lets an accelerator shard weights on CPUs too, as torch can; accelerate does so only on accelerators."""
        if accelerator.device.type == "cpu":
            PartialState().distributed_type = accelerator.state.distributed_type = DistributedType.FSDP
            accelerator.state.fsdp_plugin = self

    def shard(self, model: PreTrainedModel) -> None:
        """Shards the weights among the processes, in place, layer by layer; call it before creating the optimizer.

        accelerate's own wrapping puts two of the modules that share the embedding into one unit and the third into
        another, which torch refuses. Here the embedding belongs to the root.
        """
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        settings: dict[str, Any] = {
            "offload_policy": self.cpu_offload,
            "mp_policy": self.mixed_precision_policy or MixedPrecisionPolicy(),
        }
        layers = [module for module in model.modules() if type(module).__name__ in (model._no_split_modules or ())]
        for layer in layers:
            fully_shard(layer, reshard_after_forward=self.reshard_after_forward, **settings)
        fully_shard(model, **settings)
        # Everything is sharded: accelerate must not look for layers, whose classes have other names by now.
        self.auto_wrap_policy = None

    def gather(self, model: torch.nn.Module, optimizer: AcceleratedOptimizer) -> dict[str, Any]:
        """Gathers weights and optimizer state as without sharding, on the main process; all processes call it."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        gathered = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights, state = get_state_dict(model, optimizer.optimizer, options=gathered)
        if not weights:
            return {}
        # torch lists tied weights twice and does not number them; checkpoints of any run list them once, with numbers.
        numbers = {name: number for number, (name, _) in enumerate(model.named_parameters())}
        return {
            "weights": OrderedDict((name, weights[name]) for name in numbers),
            "optimizer": _with_parameters(state, numbers),
        }

    def load(self, directory: Path, is_main: bool, model: torch.nn.Module, optimizer: AcceleratedOptimizer) -> None:
        """Loads weights and optimizer state: the main process reads them and sends each process its shard.

        They are set one after the other: `set_state_dict` expects no weights from a process that gives none, and the
        main process would wait for them.
        """
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            set_model_state_dict,
            set_optimizer_state_dict,
        )

        weights: dict[str, Any] = {}
        state: dict[str, Any] = {}
        if is_main:
            saved = read_weights(directory)
            name_of = {parameter: name for name, parameter in model.named_parameters()}
            every = model.named_parameters(remove_duplicate=False)
            weights = {name: saved[name_of[parameter]] for name, parameter in every}
            numbered = torch.load(directory / f"{OPTIMIZER_NAME}.bin", map_location="cpu", weights_only=True)
            state = _with_parameters(numbered, dict(enumerate(name_of.values())))
        from_main = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, weights, options=from_main)
        set_optimizer_state_dict(model, optimizer.optimizer, state, options=from_main)


def _with_parameters(state: Mapping[str, Any], names: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns an optimizer's state with other names, or numbers, of its parameters."""
    return {
        "state": {names[parameter]: values for parameter, values in state["state"].items()},
        "param_groups": [
            {**group, "params": [names[parameter] for parameter in group["params"]]} for group in state["param_groups"]
        ],
    }
