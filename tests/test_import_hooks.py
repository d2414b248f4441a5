"""Actions after another module's import, however it was looked for before."""

import importlib.util
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from vanilla_transformer.import_hooks import after_import

REGISTERED = """
import importlib.util, sys
import vanilla_transformer
assert "transformers" not in sys.modules and "torch" not in sys.modules
assert importlib.util.find_spec("transformers") is not None
from transformers import AutoConfig
print(AutoConfig.for_model("vanilla_transformer_decoder").model_type)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a module that nobody has imported."""
    name = f"module_of_{request.node.name.partition('[')[0]}"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_hook_runs_once_after_the_import_of_its_module(module: str):
    seen: list[int] = []
    finders = list(sys.meta_path)
    after_import(module, lambda imported: seen.append(imported.value))
    assert importlib.util.find_spec(module) is not None and seen == []  # To look for it is not to import it.
    import_module(module)
    import_module(module)
    assert seen == [1] and sys.meta_path == finders
    after_import(module, lambda imported: seen.append(2))
    assert seen == [1, 2]


def test_a_hook_does_not_hide_that_its_module_is_missing(module: str):
    seen: list[object] = []
    after_import(f"{module}_which_is_not_there", seen.append)
    try:
        with pytest.raises(ModuleNotFoundError):
            import_module(f"{module}_which_is_not_there")
    finally:
        del sys.meta_path[0]
    assert seen == []


def test_the_package_registers_its_models_once_transformers_is_imported():
    done = subprocess.run([sys.executable, "-c", REGISTERED], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("vanilla_transformer_decoder\n", 0), done.stderr
