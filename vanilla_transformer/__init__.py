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
`pipeline` can load its models. torch and transformers are imported only when a name that needs them is first used.

Import this package before torch, so that torch's threads sleep while they wait for each other. Otherwise, training is
half as fast if five other programs use the two cores of a machine.
"""

import ast
import pkgutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .import_hooks import after_import
from .machine import prepare_waiting

# All public names, each imported as itself. Type checkers follow these imports. At run time `__getattr__` follows an
# import only when its name is used, because most of the modules import torch.
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
    from .training.run import train as train
    from .translation import Translator as Translator

__version__ = "0.1.0"

# Maps each public name to its module. The imports above are read from this file, so that no name is listed twice.
_HOMES = {
    alias.name: f".{node.module}"
    for node in ast.walk(ast.parse(Path(__file__).read_bytes()))
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
    if alias.asname == alias.name
}
__all__ = sorted(_HOMES)
_PACKAGES = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
# These names cannot be imported unless the extra `train` is installed.
_OF_TRAINING = {"evaluate", "prepare_corpus", "train"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    if name in _PACKAGES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Lists the sub-packages, and the public names whose requirements are installed."""
    module = {name for name in globals() if name.startswith("__")}
    missing = _OF_TRAINING if find_spec("accelerate") is None else set()
    return sorted({*module, *__all__, *_PACKAGES} - missing)


prepare_waiting()
after_import("transformers", lambda module: import_module(".registration", __name__))
