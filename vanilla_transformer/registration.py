"""Importing this module makes the package's classes known to transformers' Auto classes and pipelines."""

import functools
from typing import Any

import transformers
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedConfig
from transformers import pipelines as transformers_pipelines
from transformers.utils import logging

from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.modeling_vanilla_transformer import (
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)
from vanilla_transformer.model.pipeline_vanilla_transformer import LANGUAGES, PIPELINES
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer

logger = logging.get_logger(__name__)


class _PipelinesOfThePackage:
    """Keeps the pipelines that a configuration names for when it is saved, and shows none of them.

    `pipeline` would ask whether the code beside a model is to be trusted, though the package has the same pipelines.
    """

    def __get__(self, config: PreTrainedConfig | None, owner: type | None = None) -> dict[str, Any]:
        return {}

    def __set__(self, config: PreTrainedConfig, value: dict[str, Any]) -> None:
        vars(config)["custom_pipelines"] = value


def _with_languages(check_task: Any) -> Any:
    """As the library did before version 5: `translation_en_to_de` is the task `translation`, from one to the other."""

    @functools.wraps(check_task)
    def check(task: str) -> Any:
        languages = LANGUAGES.fullmatch(task)
        if languages is None:
            return check_task(task)
        return (*check_task("translation")[:2], languages.groups())

    return check


def _register_pipelines() -> None:
    registry: Any = transformers_pipelines.PIPELINE_REGISTRY
    for task, pipeline in PIPELINES.items():
        # transformers 5 removed these tasks: a task that somebody has put back is left as it is.
        if task not in registry.get_supported_tasks():
            getattr(transformers_pipelines, "REMOVED_TASKS", {}).pop(task, None)
            registry.register_pipeline(task, pipeline_class=pipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
    try:
        registry.check_task = _with_languages(registry.check_task)
        transformers_pipelines.check_task("translation_en_to_de")
    except (AttributeError, KeyError):
        # No name of these is documented.
        logger.warning_once(
            f'transformers {transformers.__version__} does not take the task of pipeline("translation") from a '
            "package any more: call VanillaTransformerTranslationPipeline(model=..., tokenizer=...) in its place."
        )


AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)
AutoModel.register(VanillaTransformerConfig, VanillaTransformerModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, exist_ok=True)
AutoTokenizer.register(VanillaTransformerConfig, tokenizer_class=VanillaTransformerTokenizer, exist_ok=True)

_register_pipelines()
VanillaTransformerConfig.custom_pipelines = _PipelinesOfThePackage()  # type: ignore[attr-defined]
