"""Lines of text in, translations out: one per line, in order, in constant memory."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vanilla_transformer.translation.lines import Hypothesis as Hypothesis
    from vanilla_transformer.translation.lines import Translation as Translation
    from vanilla_transformer.translation.lines import translate_lines as translate_lines
    from vanilla_transformer.translation.lines import with_pauses as with_pauses
    from vanilla_transformer.translation.loading import ModelNotFoundError as ModelNotFoundError
    from vanilla_transformer.translation.loading import UnusableModelError as UnusableModelError
    from vanilla_transformer.translation.loading import load_config as load_config
    from vanilla_transformer.translation.loading import load_model as load_model
    from vanilla_transformer.translation.loading import load_tokenizer as load_tokenizer
    from vanilla_transformer.translation.translator import LineTranslator as LineTranslator

# Imported on first use: options are checked without torch.
_HOMES = {
    "lines": ("Hypothesis", "Translation", "translate_lines", "with_pauses"),
    "loading": ("ModelNotFoundError", "UnusableModelError", "load_config", "load_model", "load_tokenizer"),
    "translator": ("LineTranslator",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
