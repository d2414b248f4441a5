"""The labels of texts and of words as a part of the recipe."""

from dataclasses import dataclass
from typing import Literal

from vanilla_transformer.recipe.blocks import RecipeError, setting
from vanilla_transformer.recipe.schema import ExtraBlock, Recipe


@dataclass(frozen=True)
class Classification(ExtraBlock):
    """The labels of a text or of its words."""

    labels: tuple[str, ...] | None = setting(metavar="LABEL ...")
    """Labels in the order of their ids; by default those in `train`, sorted."""
    pooling: Literal["mean", "first"] | None = setting(option="classifier_pooling")
    """Input of a text classifier: the mean over all tokens (the default), or the first token, `<s>`."""

    def complete(self, recipe: Recipe) -> Recipe:
        """Returns the recipe as it is.

        Raises:
            RecipeError: Its task does not use one of these settings.
        """
        if self.is_used:
            from vanilla_transformer.tasks import task_for

            task = task_for(recipe)
            for option in recipe.used("classification"):
                if option not in getattr(task, "label_options", ()):
                    raise RecipeError(f"{option} is not for {task.name}: leave it out.")
        return recipe
