"""Refusal of models that a format cannot express."""

from collections.abc import Collection

from transformers import PreTrainedModel

from vanilla_transformer.engine.known import unknown_to_export
from vanilla_transformer.errors import ModelError
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig


def refuse_other_widths(config: VanillaTransformerConfig, system: str) -> None:
    """Raises ModelError if d_k or d_v is not d_model / h."""
    if not config.d_k == config.d_v == config.d_model / config.num_heads:
        raise ModelError(
            f"{system} requires d_k = d_v = d_model / num_heads: this model has {config.num_heads} heads with d_k "
            f"{config.d_k} and d_v {config.d_v}, and d_model {config.d_model}."
        )


def refuse_unexportable(model: PreTrainedModel, activations: Collection[str]) -> None:
    """Raises ModelError if an export with these activation functions would drop a part of the model."""
    if reason := unknown_to_export(model, activations):
        raise ModelError(f"The model cannot be exported, because no export supports {reason}.")
