"""An estimate of training memory, without allocating it."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerBaseConfig
from vanilla_transformer.model.heads import LanguageModelHead
from vanilla_transformer.model.modeling_vanilla_transformer_encoder import (
    VanillaTransformerEncoderForSequenceClassification,
)
from vanilla_transformer.registration import model_class


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of all tensors of one process at the peak of a training step, and of the copy for checkpoints."""

    weights: int
    gradients: int
    adam: int
    activations: int
    """Temporary tensors of a batch: activations kept for the backward pass, a part of the logits, and the weights cast
    to bfloat16."""
    checkpoint_copy: int
    """Copy of weights and Adam's moments from which checkpoints are written: main memory, main process only."""

    @property
    def total(self) -> int:
        """The total on the device; gradients persist from batch to batch, so everything exists at the same time."""
        return self.weights + self.gradients + self.adam + self.activations


def training_memory(
    config: VanillaTransformerBaseConfig, *, sentences: int, source_length: int, target_length: int, precision: str
) -> TrainingMemory:
    """Measures a batch's memory on a CPU with eager attention, in a step on tensors with shapes but no data.

    For a model of one stack, `source_length` is the length of the texts, and `target_length` is the same.

    The process takes some more: for libraries, and for gaps left by the allocator. On an accelerator fused attention
    keeps no attention weights, which saves most for long sentences.
    """
    with FakeTensorMode():
        kind = model_class(config)
        model = kind(config).train()
        model.set_attn_implementation("eager")
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        source = torch.zeros(sentences, source_length, dtype=torch.int64)
        each = kind is VanillaTransformerEncoderForSequenceClassification
        labels = torch.zeros((sentences,) if each else (sentences, target_length), dtype=torch.int64)
        given = {"skip_logits": True} if issubclass(kind, LanguageModelHead) else {}
        with _LiveBytes() as bytes_of_batch:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                outputs = model(
                    input_ids=source,
                    attention_mask=torch.ones_like(source),
                    labels=labels,
                    num_items_in_batch=labels.numel(),
                    **given,
                )
            outputs.loss.backward()
    weights = 4 * model.num_parameters()
    return TrainingMemory(
        weights=weights,
        gradients=weights,
        adam=2 * weights,
        activations=bytes_of_batch.most,
        checkpoint_copy=3 * weights,
    )


class _LiveBytes(TorchDispatchMode):
    """Tracks the bytes of live tensors created in its body."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                self._count(value.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._alive:
            return  # A view, or a result written in place.

        def forget(_: weakref.ref[torch.UntypedStorage]) -> None:
            del self._alive[key]
            self.now -= size

        self._alive[key] = weakref.ref(storage, forget)
        self.now += size
        self.most = max(self.most, self.now)
