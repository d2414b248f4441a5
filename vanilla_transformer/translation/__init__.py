"""Lines of text in, translations out: one for each line, in order, in constant memory."""

from vanilla_transformer.translation.lines import Hypothesis, LineTranslator, Translation, translate_lines, with_pauses
from vanilla_transformer.translation.loading import (
    ModelNotFoundError,
    UnusableModelError,
    fingerprint,
    load_config,
    load_model,
    load_tokenizer,
    model_fingerprint,
)

__all__ = [
    "Hypothesis",
    "LineTranslator",
    "ModelNotFoundError",
    "Translation",
    "UnusableModelError",
    "fingerprint",
    "load_config",
    "load_model",
    "load_tokenizer",
    "model_fingerprint",
    "translate_lines",
    "with_pauses",
]
