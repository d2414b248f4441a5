"""Registration with transformers, whenever it is imported."""

import importlib.util
import subprocess
import sys
from importlib import import_module

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


def test_a_hook_runs_once_after_the_import_of_its_module_and_does_not_hide_that_it_is_missing(tmp_path, monkeypatch):
    (tmp_path / "hooked_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", finders := [*sys.meta_path])
    seen: list[object] = []
    after_import("module_that_is_missing", seen.append)
    with pytest.raises(ModuleNotFoundError):
        import_module("module_that_is_missing")
    before = [*finders]
    after_import("hooked_module", lambda imported: seen.append(imported.value))
    assert importlib.util.find_spec("hooked_module") is not None and seen == []  # To look for it is not to import it.
    import_module("hooked_module")
    assert seen == [1] and finders == before
    after_import("hooked_module", lambda imported: seen.append(2))
    assert seen == [1, 2]


def test_the_package_registers_its_models_once_transformers_is_imported():
    done = subprocess.run([sys.executable, "-c", REGISTERED], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("vanilla_transformer_decoder\n", 0), done.stderr
