"""Runs code after a module of another package is imported, without importing it.

So `import vanilla_transformer` registers its classes without loading transformers and torch, which takes seconds that
`vanilla-transformer --help` need not wait for.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, action: Callable[[ModuleType], object]) -> None:
    """Calls `action` with the module of that name: now if it is loaded, else as soon as it is imported."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, action))


class _AfterImport(MetaPathFinder):
    """Finds one module through the finders behind it; others may look it up without importing it."""

    def __init__(self, name: str, action: Callable[[ModuleType], object]) -> None:
        self.name, self.action = name, action

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        others = [one for one in sys.meta_path if one is not self and hasattr(one, "find_spec")]  # Old ones have none.
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self.action(module)

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
