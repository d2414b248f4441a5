"""Tasks by name."""

from inspect import get_annotations
from pathlib import Path

from vanilla_transformer.errors import RecipeError
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
        LanguageModeling(),
        MaskedLanguageModeling(),
        TextClassification(),
        TokenClassification(),
    )
}


def get_task(name: str) -> Task:
    """Returns the task of that name.

    Raises:
        RecipeError: There is none.
    """
    if name not in _TASKS:
        hint = did_you_mean(name, [*_TASKS]) or "."
        raise RecipeError(f"There is no task {name!r}{hint} There are {', '.join(sorted(_TASKS))}.")
    return _TASKS[name]


def task_for(recipe: Recipe) -> Task:
    """Returns the task of a recipe, adapted to it.

    Raises:
        RecipeError: There is no task of that name.
    """
    task = get_task(recipe.task)
    if type(task) is Translation and recipe.model.architecture == "recurrent":
        return _recurrent_translation()
    return task.of_recipe(recipe)


def _recurrent_translation() -> Task:
    from vanilla_transformer.tasks.recurrent_translation import RecurrentTranslation

    return RecurrentTranslation()


def task_of_model(path: str | Path) -> Task:
    """Returns the task of a model in a directory or on the Hub, from its recipe or else from its saved head.

    Raises:
        OSError, ValueError: There is no such model, or no task has its head, or it has no head.
    """
    recipe = Path(path) / "recipe.yaml"
    if recipe.is_file():
        return task_for(load_recipe(recipe, lenient=True))
    config = saved_config(path)
    if config.model_type == "recurrent_encoder_decoder":
        return _recurrent_translation()
    architectures = config.architectures or []
    for models in FAMILIES.values():
        for auto_class, model in models.items():
            if model.__name__ in architectures:
                tasks = [task for task in _TASKS.values() if task.auto_class == auto_class.__name__]
                if not tasks:
                    raise ValueError(f"{path} is a {model.__name__}, for which there is no task.")
                return tasks[0].of_config(config)
    return _TASKS["translation"]


def register_task(task: Task) -> None:
    """Registers a task under its name, replacing an earlier one of that name, so that recipes can use it.

    Raises:
        TypeError: It lacks members that `Task` has, which a run would miss only at its end.
    """
    members = {name for kind in Task.__mro__ for name in (*vars(kind), *get_annotations(kind)) if name[0] != "_"}
    lacking = sorted(name for name in members if not hasattr(task, name))
    if lacking:
        raise TypeError(
            f"{type(task).__name__} has no {', '.join(lacking)}: derive it from vanilla_transformer.tasks.Task, and "
            "set the attributes that its documentation names."
        )
    _TASKS[task.name] = task
