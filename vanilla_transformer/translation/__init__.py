"""Lines of text in, translations out: one per line, in order, in constant memory."""

from vanilla_transformer.translation.translator import Hypothesis, TranslationResult, Translator, with_pauses

__all__ = ["Hypothesis", "TranslationResult", "Translator", "with_pauses"]
