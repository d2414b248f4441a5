"""Importing this module makes the package's classes known to transformers' Auto classes and pipelines."""

from typing import Any

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedConfig
from transformers import pipelines as transformers_pipelines

from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.modeling_vanilla_transformer import (
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)
from vanilla_transformer.model.pipeline_vanilla_transformer import PIPELINES
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer


class _PipelinesOfThePackage:
    """Keeps the pipelines that a configuration names for when it is saved, and shows none of them.

    `pipeline` would ask whether the code beside a model is to be trusted, though the package has the same pipelines.
    """

    def __get__(self, config: PreTrainedConfig | None, owner: type | None = None) -> dict[str, Any]:
        return {}

    def __set__(self, config: PreTrainedConfig, value: dict[str, Any]) -> None:
        vars(config)["custom_pipelines"] = value


AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)
AutoModel.register(VanillaTransformerConfig, VanillaTransformerModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, exist_ok=True)
AutoTokenizer.register(VanillaTransformerConfig, tokenizer_class=VanillaTransformerTokenizer, exist_ok=True)

for _task, _pipeline in PIPELINES.items():
    # transformers 5 removed these tasks: a task that somebody has put back is left as it is.
    if _task not in transformers_pipelines.PIPELINE_REGISTRY.get_supported_tasks():
        transformers_pipelines.REMOVED_TASKS.pop(_task, None)
        transformers_pipelines.PIPELINE_REGISTRY.register_pipeline(
            _task, pipeline_class=_pipeline, pt_model=AutoModelForSeq2SeqLM, type="text"
        )
VanillaTransformerConfig.custom_pipelines = _PipelinesOfThePackage()  # type: ignore[attr-defined]
