"""The extensions that extras bring to the core, which imports none of the extras.

Each folder of `vanilla_transformer/extras` has a module `plugin` with a table `SEAMS`: for each seam, names and the
location of the object of that name, as "module:object" below the folder. Objects are loaded when they are used. If it
has commands, `GROUP` names their group in the program's help. The seams are

    family       a family of models: a function that returns its configuration with its model for each Auto class
    architecture what trains such a family for translation, by its name in a recipe: a subclass of
                 `tasks.translation.Translation` with its `config_class`
    command      a command of the program: a dataclass of options with `run()`
    recipe       a block of the recipe: a subclass of `recipe.schema.ExtraBlock`
    mixture      several corpora as one: a function of corpora as named, the same in tokens, a recipe and a function
                 that reports sentences, which returns a `data.token_corpus.PreparedCorpus`
    file         a kind of file with rows of text, by its suffix: a function of path, wanted columns and form that
                 returns a `data.tables.RowTable`
    text         a text that an extra brings, by its name: a function of the name of a split, empty if none is given,
                 that returns a `data.tables.RowTable` of pairs
    task         a task, by its name in a recipe: a subclass of `tasks.Task`
    item_metric  a metric of texts: a function of predictions and references that returns a value and its signature,
                 where lines with the same source are one item with several references
    push         an option of `push`: takes the command and an empty folder, writes its pages there, and returns a
                 function that takes the model's name on the Hub, makes the Space and returns its URL
    search       a runtime for searches of small models inside `frozen`: takes the model, and returns None or, if it
                 computes that model, an object with `suits(rows)`, which tells whether it is the fastest for that many
                 hypotheses, and with `greedy` and `beam` as in `extras.onnx.graph_search.GraphSearch`
    options      a group of options of `train`, `translate`, `evaluate` or `predict`: a dataclass
    tracking     experiment trackers: `make`, given names and the output directory, returns what accelerate takes for
                 them, or refuses a name; `start`, given an accelerator and a recipe, starts them; `scores`, given the
                 summary of a run, returns the figures that they get at its end
"""

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any


@cache
def _plugins() -> dict[str, Any]:
    extras = import_module("vanilla_transformer.extras")
    folders = pkgutil.iter_modules(extras.__path__, f"{extras.__name__}.")
    return {folder.name: import_module(f"{folder.name}.plugin") for folder in folders if folder.ispkg}


def command_groups() -> dict[str, str]:
    """Returns the extras' commands, each with its group in the program's help."""
    return {name: plugin.GROUP for plugin in _plugins().values() for name in plugin.SEAMS.get("command", ())}


def names(seam: str) -> list[str]:
    """Returns the names that the extras bring at a seam."""
    return [name for plugin in _plugins().values() for name in plugin.SEAMS.get(seam, ())]


def load(seam: str, name: str) -> Any:
    """Returns the object of that name; KeyError if no extra brings one."""
    for folder, plugin in _plugins().items():
        if name in plugin.SEAMS.get(seam, ()):
            return pkgutil.resolve_name(f"{folder}.{plugin.SEAMS[seam][name]}")
    raise KeyError(name)
