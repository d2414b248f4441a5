"""Tasks by name."""

from pathlib import Path

from vanilla_transformer.errors import ModelError, SettingError, did_you_mean
from vanilla_transformer.loading.models import saved_config
from vanilla_transformer.model_directory import RECIPE
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.registration import FAMILIES
from vanilla_transformer.tasks.interface import Task
from vanilla_transformer.tasks.language_modeling import LanguageModeling, PackedLanguageModeling
from vanilla_transformer.tasks.masked_language_modeling import MaskedLanguageModeling
from vanilla_transformer.tasks.text_classification import TextClassification
from vanilla_transformer.tasks.token_classification import TokenClassification
from vanilla_transformer.tasks.translation import Translation

_TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Translation(),
        LanguageModeling(),
        MaskedLanguageModeling(),
        TextClassification(),
        TokenClassification(),
    )
}


def register_task(task: Task) -> None:
    """Registers a task under its name, replacing an earlier one of that name, so that recipes can use it."""
    _TASKS[task.name] = task


def get_task(name: str) -> Task:
    """Returns the task of that name."""
    if name not in _TASKS:
        hint = did_you_mean(name, _TASKS) or "."
        raise SettingError(f"There is no task {name!r}{hint} There are {', '.join(sorted(_TASKS))}.")
    return _TASKS[name]


def task_for(recipe: Recipe) -> Task:
    """Returns the task of a recipe, adapted to its kind of text."""
    task = get_task(recipe.data.task)
    if type(task) is LanguageModeling and recipe.data.documents == "packed":
        return PackedLanguageModeling()
    return task


def scores_translations(task: Task) -> bool:
    """Returns True if a task scores its models only with `evaluate_translation`."""
    return all(getattr(type(task), name) is getattr(Translation, name) for name in ("evaluate", "form", "metrics"))


def task_of_model(path: str | Path) -> Task:
    """Returns the task of a model in a directory or on the Hub, from its recipe or else from its saved head.

    Raises:
        OSError, ValueError: There is no such model, or no task uses its head, or it has no head.
    """
    recipe = Path(path, RECIPE)
    if recipe.is_file():
        return task_for(load_recipe(recipe, lenient=True))
    config = saved_config(path)
    heads = {model.__name__: head.__name__ for models in FAMILIES.values() for head, model in models.items()}
    for name in config.architectures or []:
        if name in heads:
            task = next((task for task in _TASKS.values() if task.auto_class == heads[name]), None)
            if task is None:
                raise ModelError(f"{path} is a {name}, for which there is no task.")
            return PackedLanguageModeling() if getattr(config, "documents", "lines") == "packed" else task
    return _TASKS["translation"]
