"""Optional folders beside the core, each with its commands, docs and tests; `vanilla_transformer.seams` finds them."""

import pkgutil
from importlib import import_module
from typing import Any

_FOLDERS = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *_FOLDERS})
