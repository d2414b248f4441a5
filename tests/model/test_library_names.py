"""The private names of other libraries are those in `library_names.py`, and the installed releases still have them."""

import ast
import inspect
import re
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest
import transformers
from library_names import NAMES

import vanilla_transformer

PACKAGE = Path(vanilla_transformer.__file__).parent
TREES = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]
LISTED = {name.replace(":", ".").replace("#", ".").rpartition(".")[2] for name in NAMES}
# Modules of transformers whose names its documentation describes.
DOCUMENTED = ("cache_utils", "generation", "modeling_outputs", "utils", "utils.logging")


@pytest.mark.parametrize("name", NAMES)
def test_the_installed_release_has_the_name_and_its_parameters(name: str):
    parameters, reason = NAMES[name]
    changed = f"A library has changed {name} (transformers is {transformers.__version__}). Its use: {reason}"
    module, _, private = name.partition("#")
    if private:
        source = Path(find_spec(module).origin).read_text(encoding="utf-8")
        assert re.search(rf"\b{private}\b", source), changed
        return
    module, _, attributes = name.partition(":")
    found: Any = reduce(getattr, attributes.split("."), import_module(module))
    if parameters:
        assert set(parameters.split()) <= set(inspect.signature(found).parameters), changed


def own_names() -> set[str]:
    """All names that the package defines or assigns itself."""
    names = set()
    for node in (node for tree in TREES for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_no_other_private_attribute_is_read_or_set():
    accessed = {node.attr for tree in TREES for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    documented = {"_asdict", "_fields", "_replace"}  # Of named tuples.
    assert {name for name in accessed if is_private(name)} - own_names() - documented <= LISTED


def test_no_other_private_method_is_overridden():
    overridden = set()
    for found in walk_packages(vanilla_transformer.__path__, "vanilla_transformer."):
        if found.name.endswith("__main__"):
            continue
        for kind in vars(import_module(found.name)).values():
            if inspect.isclass(kind) and kind.__module__ == found.name:
                bases = [
                    base for base in kind.__mro__[1:] if base.__module__.startswith(("transformers.", "torch.nn"))
                ]
                overridden |= {name for name in vars(kind) if any(name in vars(base) for base in bases)}
    assert {name for name in overridden if is_private(name)} - {"_abc_impl"} <= LISTED


def test_no_other_module_of_transformers_is_imported_from():
    imported = set()
    for node in (node for tree in TREES for node in ast.walk(tree)):
        module = getattr(node, "module", None) or ""
        package, _, rest = module.partition(".")
        if isinstance(node, ast.ImportFrom) and package == "transformers" and rest and rest not in DOCUMENTED:
            imported |= {f"{module}:{alias.name}" for alias in node.names}
    assert imported <= NAMES.keys()
