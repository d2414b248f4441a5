"""The Transformer of "Attention Is All You Need", trained on your own text and native to Hugging Face.

    import vanilla_transformer as vt
    from transformers import pipeline

    run = vt.train(train=("corpus.en", "corpus.de"), dev=("dev.en", "dev.de"), output="my-model")
    print(run.scores["dev"])

    translator = vt.Translator("my-model")
    print(translator("A dog runs.").text)

    print(vt.evaluate("my-model", ("test.en", "test.de")).scores)
    translate = pipeline("translation", model="my-model")
    vt.inspection.attention(translate.model, translate.tokenizer, "A dog runs.")

Importing the package registers its classes with transformers, so that `from_pretrained`, the Auto classes and
`pipeline` load its models. torch and transformers are imported when a name that needs them is first used.
"""

import pkgutil
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .import_hooks import after_import

if TYPE_CHECKING:
    from .data.preparation import prepare_corpus as prepare_corpus
    from .model.configuration_vanilla_transformer import (
        VanillaTransformerConfig as VanillaTransformerConfig,
        VanillaTransformerDecoderConfig as VanillaTransformerDecoderConfig,
        VanillaTransformerEncoderConfig as VanillaTransformerEncoderConfig,
    )
    from .model.modeling_vanilla_transformer import (
        VanillaTransformerForConditionalGeneration as VanillaTransformerForConditionalGeneration,
        VanillaTransformerModel as VanillaTransformerModel,
    )
    from .model.modeling_vanilla_transformer_decoder import (
        VanillaTransformerDecoderForCausalLM as VanillaTransformerDecoderForCausalLM,
        VanillaTransformerDecoderModel as VanillaTransformerDecoderModel,
    )
    from .model.modeling_vanilla_transformer_encoder import (
        VanillaTransformerEncoderForMaskedLM as VanillaTransformerEncoderForMaskedLM,
        VanillaTransformerEncoderForSequenceClassification as VanillaTransformerEncoderForSequenceClassification,
        VanillaTransformerEncoderForTokenClassification as VanillaTransformerEncoderForTokenClassification,
        VanillaTransformerEncoderModel as VanillaTransformerEncoderModel,
    )
    from .model.pipeline_vanilla_transformer import (
        VanillaTransformerTranslationPipeline as VanillaTransformerTranslationPipeline,
    )
    from .model.tokenization_vanilla_transformer import VanillaTransformerTokenizer as VanillaTransformerTokenizer
    from .recipe.reading import load_recipe as load_recipe
    from .recipe.schema import Recipe as Recipe
    from .recurrent.configuration_recurrent_encoder_decoder import (
        RecurrentEncoderDecoderConfig as RecurrentEncoderDecoderConfig,
    )
    from .recurrent.modeling_recurrent_encoder_decoder import (
        RecurrentEncoderDecoderForConditionalGeneration as RecurrentEncoderDecoderForConditionalGeneration,
        RecurrentEncoderDecoderModel as RecurrentEncoderDecoderModel,
    )
    from .tasks import evaluate as evaluate
    from .tokenizer import train_tokenizer as train_tokenizer
    from .training.loop import train as train
    from .translation import Translator as Translator

__version__ = "0.1.0"

_HOMES = {
    "RecurrentEncoderDecoderConfig": ".recurrent.configuration_recurrent_encoder_decoder",
    "RecurrentEncoderDecoderModel": ".recurrent.modeling_recurrent_encoder_decoder",
    "RecurrentEncoderDecoderForConditionalGeneration": ".recurrent.modeling_recurrent_encoder_decoder",
    "VanillaTransformerConfig": ".model.configuration_vanilla_transformer",
    "VanillaTransformerModel": ".model.modeling_vanilla_transformer",
    "VanillaTransformerForConditionalGeneration": ".model.modeling_vanilla_transformer",
    "VanillaTransformerEncoderConfig": ".model.configuration_vanilla_transformer",
    "VanillaTransformerEncoderModel": ".model.modeling_vanilla_transformer_encoder",
    "VanillaTransformerEncoderForMaskedLM": ".model.modeling_vanilla_transformer_encoder",
    "VanillaTransformerEncoderForSequenceClassification": ".model.modeling_vanilla_transformer_encoder",
    "VanillaTransformerEncoderForTokenClassification": ".model.modeling_vanilla_transformer_encoder",
    "VanillaTransformerDecoderConfig": ".model.configuration_vanilla_transformer",
    "VanillaTransformerDecoderModel": ".model.modeling_vanilla_transformer_decoder",
    "VanillaTransformerDecoderForCausalLM": ".model.modeling_vanilla_transformer_decoder",
    "VanillaTransformerTokenizer": ".model.tokenization_vanilla_transformer",
    "VanillaTransformerTranslationPipeline": ".model.pipeline_vanilla_transformer",
    "Recipe": ".recipe.schema",
    "Translator": ".translation",
    "evaluate": ".tasks",
    "load_recipe": ".recipe.reading",
    "prepare_corpus": ".data.preparation",
    "train": ".training.loop",
    "train_tokenizer": ".tokenizer",
}
__all__ = sorted(_HOMES)
_PACKAGES = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
# These cannot be imported without the extra `train`.
_OF_TRAINING = {"evaluate", "prepare_corpus", "train"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    if name in _PACKAGES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Lists the public names and the sub-packages whose imports are installed."""
    module = {name for name in globals() if name.startswith("__")}
    missing = _OF_TRAINING if find_spec("accelerate") is None else set()
    return sorted({*module, *__all__, *_PACKAGES} - missing)


after_import("transformers", lambda module: import_module(".registration", __name__))
