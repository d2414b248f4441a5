"""Lines of text in, translations out: one per line, in order, in constant memory."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vanilla_transformer.translation.lines import Hypothesis as Hypothesis
    from vanilla_transformer.translation.lines import Translation as Translation
    from vanilla_transformer.translation.lines import with_pauses as with_pauses
    from vanilla_transformer.translation.loading import load_config as load_config
    from vanilla_transformer.translation.loading import load_model as load_model
    from vanilla_transformer.translation.loading import load_tokenizer as load_tokenizer
    from vanilla_transformer.translation.translator import LineTranslator as LineTranslator
    from vanilla_transformer.translation.translator import translate_lines as translate_lines

# Imported on first use: options are checked without torch.
_MODULES = {
    "lines": ("Hypothesis", "Translation", "with_pauses"),
    "loading": ("load_config", "load_model", "load_tokenizer"),
    "translator": ("LineTranslator", "translate_lines"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
