"""Importing this module registers the package's classes with transformers' Auto classes and pipelines."""

import logging
from functools import cache
from typing import Any

import transformers
from packaging.version import Version
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from vanilla_transformer.cross_entropy import summed_cross_entropy
from vanilla_transformer.model import (
    modeling_vanilla_transformer,
    modeling_vanilla_transformer_decoder,
    modeling_vanilla_transformer_encoder,
)
from vanilla_transformer.model.pipeline_vanilla_transformer import (
    HubModel,
    VanillaTransformerTokenClassificationPipeline,
    VanillaTransformerTranslationPipeline,
)
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recurrent import modeling_recurrent_encoder_decoder

logger = logging.getLogger(__name__)

# The newest version of transformers with which all tests passed.
NEWEST_TESTED = "5.24.0"

# Maps the configuration of each model family to the family's model for each Auto class. The second model is the
# language model.
FAMILIES: dict[type[PreTrainedConfig], dict[type[_BaseAutoModelClass], type[PreTrainedModel]]] = {}


def register_family(
    family: type[PreTrainedConfig], models: dict[type[_BaseAutoModelClass], type[PreTrainedModel]]
) -> None:
    """Registers a configuration with its model for each Auto class, so that all commands can load these models.

    Call it to add your own model family. Its configuration must derive from one of this package's configurations.
    """
    FAMILIES[family] = models
    AutoConfig.register(family.model_type, family, exist_ok=True)
    for auto_class, model in models.items():
        auto_class.register(family, model, exist_ok=True)
    AutoTokenizer.register(family, tokenizer_class=VanillaTransformerTokenizer, exist_ok=True)


def is_known(config: PreTrainedConfig) -> bool:
    """Returns True if the configuration belongs to a registered model family."""
    return isinstance(config, tuple(FAMILIES))


def model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Returns the model class that the configuration names, or else the language model of its family."""
    kind = type(config)
    models = list(FAMILIES.get(kind, {}).values())
    if not models:
        autos: Any = FAMILIES[next(known for known in FAMILIES if isinstance(config, known))]
        models = [auto._model_mapping[kind] for auto in autos if kind in auto._model_mapping]
    if not models:
        raise ValueError(f"No model is registered for {kind.__name__}: import the file that registers one")
    saved = [model for model in models if model.__name__ in (config.architectures or ())]
    return saved[0] if saved else models[:2][-1]


@cache
def warn_of_untested_transformers() -> None:
    """Warns once if the installed minor version of transformers is newer than the newest tested one."""
    if Version(transformers.__version__).release[:2] > Version(NEWEST_TESTED).release[:2]:
        logger.warning(
            "transformers %s is newer than %s, the newest version with which this package was tested. If the model's "
            "output looks wrong, update this package or install transformers==%s.",
            *(transformers.__version__, NEWEST_TESTED, NEWEST_TESTED),
        )


class _PipelineOfThePackage:
    """Hides the pipeline that a configuration names, but saves it with the configuration.

    Otherwise `pipeline` would ask whether to trust the code in the model directory, although this package contains the
    same pipeline.
    """

    def __get__(self, config: PreTrainedConfig | None, owner: type | None = None) -> dict[str, object]:
        return {}

    def __set__(self, config: PreTrainedConfig, value: dict[str, object]) -> None:
        vars(config)["custom_pipelines"] = value


HubModel.before_loading = staticmethod(warn_of_untested_transformers)
modeling_vanilla_transformer.LanguageModelHead.summed_cross_entropy = staticmethod(summed_cross_entropy)
for module in (
    modeling_vanilla_transformer,
    modeling_vanilla_transformer_encoder,
    modeling_vanilla_transformer_decoder,
    modeling_recurrent_encoder_decoder,
):
    for family, models in module.AUTO_MODELS.items():
        register_family(family, {getattr(transformers, name): model for name, model in models.items()})
for family in FAMILIES:
    family.custom_pipelines = _PipelineOfThePackage()  # type: ignore[attr-defined]
registry: Any = transformers.pipelines.PIPELINE_REGISTRY
# For the models of other packages, this class works like the class in transformers.
registry.supported_tasks["token-classification"]["impl"] = VanillaTransformerTokenClassificationPipeline
# transformers 5 removed this task, and rejects its name even if the task is registered again. If another package has
# already restored the task, it is left unchanged.
if "translation" not in registry.get_supported_tasks():
    getattr(transformers.pipelines, "REMOVED_TASKS", {}).pop("translation", None)
    registry.register_pipeline(
        "translation",
        pipeline_class=VanillaTransformerTranslationPipeline,
        pt_model=AutoModelForSeq2SeqLM,
        type="text",
    )
