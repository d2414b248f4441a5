"""Tasks by their names."""

from vanilla_transformer.recipe.schema import RecipeError
from vanilla_transformer.suggestions import did_you_mean
from vanilla_transformer.tasks.interface import Task
from vanilla_transformer.tasks.translation import Translation

_TASKS: dict[str, Task] = {task.name: task for task in (Translation(),)}


def get_task(name: str) -> Task:
    """The task of that name.

    Raises:
        RecipeError: There is none.
    """
    if name not in _TASKS:
        hint = did_you_mean(name, _TASKS) or "."
        raise RecipeError(f"There is no task {name!r}{hint} There are {', '.join(sorted(_TASKS))}.")
    return _TASKS[name]


def register_task(task: Task) -> None:
    """Makes a task known by its name, in place of an earlier one of that name: recipes can ask for it from then on."""
    _TASKS[task.name] = task
