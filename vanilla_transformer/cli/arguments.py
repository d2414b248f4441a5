"""Types and checks shared by the options of several commands."""

import os
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg

from vanilla_transformer.atomic_files import PARTIAL
from vanilla_transformer.errors import RecipeError

Model = Annotated[str, Positional, arg(metavar="MODEL")]
Flag = Annotated[bool, FlagCreatePairsOff, arg(help_behavior_hint="")]
# The help text states the default.
OptionalPath = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")]
Resume = Annotated[
    Flag,
    arg(
        help="From file to file: count the lines that are in the output and go on, with the same bytes at the end. "
        "Everything else in the command must be as before: it is not compared."
    ),
]


def refuse_full_directory(output: Path) -> None:
    """Raises RecipeError if the directory cannot be written, or holds more than a killed process left there."""
    if output.is_file() or (output.is_dir() and not all(file.name.startswith(PARTIAL) for file in output.iterdir())):
        raise RecipeError(f"{output} is not empty: name another directory.")
    there = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise RecipeError(f"{output} cannot be written: {there} is a file or read-only.")
