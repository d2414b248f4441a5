"""Tasks by their names."""

from pathlib import Path
from typing import Any

from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.registration import FAMILIES
from vanilla_transformer.suggestions import did_you_mean
from vanilla_transformer.tasks.interface import Task
from vanilla_transformer.tasks.language_modeling import LanguageModeling
from vanilla_transformer.tasks.masked_language_modeling import MaskedLanguageModeling
from vanilla_transformer.tasks.text_classification import TextClassification
from vanilla_transformer.tasks.token_classification import TokenClassification
from vanilla_transformer.tasks.translation import Translation
from vanilla_transformer.translation.loading import saved_config

_TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Translation(),
        TextClassification(),
        TokenClassification(),
        LanguageModeling(),
        MaskedLanguageModeling(),
    )
}


def get_task(name: str) -> Task:
    """The task of that name.

    Raises:
        RecipeError: There is none.
    """
    if name not in _TASKS:
        hint = did_you_mean(name, _TASKS) or "."
        raise RecipeError(f"There is no task {name!r}{hint} There are {', '.join(sorted(_TASKS))}.")
    return _TASKS[name]


def task_for(recipe: Recipe) -> Task:
    """The task of a recipe, as the recipe has it.

    Raises:
        RecipeError: There is none of that name.
    """
    return get_task(recipe.task).of_recipe(recipe)


def task_of_model(path: str | Path) -> Task:
    """The task of a model in a directory or on the Hub: that of its recipe, or else of the head it was saved with.

    Raises:
        OSError, ValueError: There is no such model, or it has a head of no task, or none.
    """
    recipe = Path(path) / "recipe.yaml"
    if recipe.is_file():
        return task_for(load_recipe(recipe))
    config = saved_config(path)
    architectures = config.architectures or []
    for models in FAMILIES.values():
        for auto_class, model in models.items():
            if model.__name__ in architectures:
                tasks = [task for task in _TASKS.values() if task.auto_class == auto_class.__name__]
                if not tasks:
                    raise ValueError(f"{path} is a {model.__name__}, which no task is for.")
                return tasks[0].of_recipe(_kind(config))
    return _TASKS["translation"]


def _kind(config: Any) -> Recipe:
    """Reads from a model's configuration the kind of text or label that its task is for."""
    return Recipe.of(documents=getattr(config, "documents", "lines"), problem_type=config.problem_type)


def register_task(task: Task) -> None:
    """Makes a task known by its name, in place of an earlier one of that name: recipes can ask for it from then on."""
    _TASKS[task.name] = task
