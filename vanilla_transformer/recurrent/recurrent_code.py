"""Saves the code of recurrent models in one folder, as models with code of their own need it."""

import os
import re
import shutil
from pathlib import Path

from transformers.dynamic_module_utils import get_relative_import_files

# An import of a file of the package's models, which is saved beside these.
_IMPORTED = re.compile(r"^from vanilla_transformer\.model\.(\w+) import", re.MULTILINE)


def save_code(folder: str | os.PathLike[str]) -> None:
    """Copies the files of this folder and those of the package's models that they import, directly or not."""
    for file in Path(__file__).parent.glob("*recurrent*.py"):
        code = file.read_text(encoding="utf-8")
        for name in _IMPORTED.findall(code):
            imported = Path(__file__).parents[1] / "model" / f"{name}.py"
            for needed in [str(imported), *get_relative_import_files(imported)]:
                shutil.copy(needed, folder)
        Path(folder, file.name).write_text(_IMPORTED.sub(r"from .\1 import", code), encoding="utf-8")
