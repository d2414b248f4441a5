"""The recurrent family for the Auto classes of transformers, and for PEFT, which needs no names of its modules."""

from types import ModuleType
from typing import Any

from transformers import AutoModel, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel

from vanilla_transformer.import_hooks import after_import
from vanilla_transformer.recurrent.configuration_recurrent_encoder_decoder import (
    RecurrentEncoderDecoderConfig,
)
from vanilla_transformer.recurrent.modeling_recurrent_encoder_decoder import (
    RecurrentEncoderDecoderForConditionalGeneration,
    RecurrentEncoderDecoderModel,
)


def models() -> dict[type[PreTrainedConfig], dict[Any, type[PreTrainedModel]]]:
    """Returns the configuration with its model for each Auto class."""
    return {
        RecurrentEncoderDecoderConfig: {
            AutoModel: RecurrentEncoderDecoderModel,
            AutoModelForSeq2SeqLM: RecurrentEncoderDecoderForConditionalGeneration,
        }
    }


def _add_default_targets(constants: ModuleType) -> None:
    """Names the modules that PEFT adapts by default; recurrent models have no norms to adapt."""
    for name, targets in vars(constants).items():
        if not name.startswith("TRANSFORMERS_MODELS_TO_") or not isinstance(targets, dict):
            continue
        if "bart" in targets and not any("norm" in module for module in targets["bart"]):
            named = ["readout"] if "FEEDFORWARD" in name else ["query_proj", "key_proj", "readout"]
            targets.setdefault(RecurrentEncoderDecoderConfig.model_type, named)


after_import("peft.utils.constants", _add_default_targets)
