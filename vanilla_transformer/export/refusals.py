"""Checks that a format supports a model and its settings."""

from collections.abc import Collection
from pathlib import Path

from transformers import PreTrainedModel

from vanilla_transformer.errors import ModelError
from vanilla_transformer.graph.settings import not_followed
from vanilla_transformer.loading.standard_models import unsupported_part
from vanilla_transformer.model.generation_vanilla_transformer import savable
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration


def exportable(
    model: PreTrainedModel, activations: Collection[str], output: Path | None = None
) -> VanillaTransformerForConditionalGeneration:
    """Returns the model; raises ModelError if an export that supports these activation functions would drop a part.

    An output directory that is not empty is also rejected, because it may be the model's own directory.
    """
    if output is not None and output.is_dir() and any(output.iterdir()):
        raise ModelError(f"{output} is not empty: name another directory.")
    reason = unsupported_part(model, activations)
    if reason or not isinstance(model, VanillaTransformerForConditionalGeneration):
        reason = reason or f"a {type(model).__name__}"
        raise ModelError(f"The model cannot be exported, because no export supports {reason}.")
    savable(model.generation_config).validate(strict=True)  # Before anything is written.
    return model


def refuse_settings(model: VanillaTransformerForConditionalGeneration, followed: Collection[str]) -> None:
    """Raises ValueError if one of the model's settings is not in `followed`, so that the export would ignore it."""
    settings = model.generation_config.to_diff_dict()
    wrong = not_followed(settings, model.config.to_dict(), followed)
    if wrong:
        raise ValueError(
            f"{wrong[0]}={settings[wrong[0]]!r} in {model.name_or_path}/generation_config.json is not available with "
            "an exported model: take it out there, or translate with the model itself."
        )
