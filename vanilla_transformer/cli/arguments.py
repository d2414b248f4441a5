"""Types and checks shared by the options of several commands."""

import os
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

Model = Annotated[str, Positional, arg(metavar="MODEL")]
Flag = Annotated[bool, FlagCreatePairsOff, arg(help_behavior_hint="")]
# The help text of an optional option states its default.
OptionalInt = Annotated[int | None, arg(metavar="INT", help_behavior_hint="")]
OptionalFloat = Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")]
OptionalText = Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")]
OptionalPath = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")]
EnsembleMean = Annotated[Literal["probabilities", "log-probabilities"], arg(help_behavior_hint="")]


class UsageError(ValueError):
    """Invalid options, or options that cannot be combined."""


def at_least_one(**options: int | None) -> None:
    """Raises UsageError for an option below 1."""
    for name, value in options.items():
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {value}.")


def refuse_full_directory(output: Path) -> None:
    """Raises UsageError if the directory is not empty or cannot be written."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} is not empty: name another directory.")
    there = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UsageError(f"{output} cannot be created: {there} is a file.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"{output} cannot be written: {there} is read-only.")
