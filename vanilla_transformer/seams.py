"""Finds what the extras bring to the core, which imports none of them.

Each folder of `vanilla_transformer/extras` has a module `plugin` with a table `SEAMS`: for each seam, names and where
the object of that name stands, as "module:object" below the folder. It is loaded when it is used. The seams are

    command      a command of the program: a dataclass of options with `run()`
    push         an option of `push`: takes the command and an empty folder, writes its pages there, and returns a
                 function that takes the model's name on the Hub, makes the Space and returns its URL
    translation  a form of the answers of `translate`: a class with `from_translator(translator, heads, ...)`
    drawing      a picture of `info`: takes a configuration and a title, returns a matplotlib figure
"""

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any


@cache
def _found() -> dict[str, dict[str, str]]:
    extras = import_module("vanilla_transformer.extras")
    found: dict[str, dict[str, str]] = {"command": {}}
    for folder in pkgutil.iter_modules(extras.__path__, f"{extras.__name__}."):
        for seam, parts in import_module(f"{folder.name}.plugin").SEAMS.items():
            found.setdefault(seam, {}).update({name: f"{folder.name}.{place}" for name, place in parts.items()})
    return found


def load_commands() -> dict[str, type]:
    """The extras' commands by name."""
    return {name: load("command", name) for name in _found()["command"]}


def load(seam: str, name: str) -> Any:
    """The object of that name; KeyError if no extra brings one."""
    return pkgutil.resolve_name(_found()[seam][name])
