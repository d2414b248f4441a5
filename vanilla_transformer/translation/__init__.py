"""Lines of text in, translations out: one per line, in order, in constant memory."""

from vanilla_transformer.translation.translator import Hypothesis, Pause, TranslationResult, Translator, with_pauses

__all__ = ["Hypothesis", "Pause", "TranslationResult", "Translator", "with_pauses"]
