"""Lines of text in, translations out: one per line, in order, in constant memory."""

from vanilla_transformer.translation.lines import Hypothesis, Translation, with_pauses
from vanilla_transformer.translation.loading import load_config, load_model, load_tokenizer
from vanilla_transformer.translation.translator import LineTranslator, translate_lines

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
