"""Lines of text in, translations out: one per line, in order, in constant memory."""

from vanilla_transformer.translation.loading import load_config, load_model, load_tokenizer
from vanilla_transformer.translation.translator import (
    Hypothesis,
    LineTranslator,
    Translation,
    translate_lines,
    with_pauses,
)

__all__ = [
    "Hypothesis",
    "LineTranslator",
    "Translation",
    "load_config",
    "load_model",
    "load_tokenizer",
    "translate_lines",
    "with_pauses",
]
