"""Recurrent models as a part of the recipe."""

from dataclasses import dataclass
from typing import Any, Literal

from vanilla_transformer.recipe.blocks import RecipeError, setting
from vanilla_transformer.recipe.schema import ExtraBlock, Recipe

ARCHITECTURE = "recurrent"
# The usual values (Luong et al. 2015 clip to 5); the rate does not follow Eq. 3.
LEARNING_RATE, MAX_GRAD_NORM, MOST_WARMUP = 1e-3, 5.0, 400


@dataclass(frozen=True)
class Recurrent(ExtraBlock):
    """Settings of recurrent models only."""

    cell: Literal["lstm", "gru"] | None = None
    """Cells of a recurrent model; lstm by default."""
    attention: Literal["none", "bahdanau", "luong-dot", "luong-general", "luong-concat"] | None = None
    """Attention of a recurrent model over the source; luong-general by default."""
    attention_window: int | None = setting(least=1)
    """Window of Luong's local attention: positions on each side of the predicted one; by default all positions."""

    def complete(self, recipe: Recipe) -> Recipe:
        """Returns the recipe with the cells and the attention of a recurrent model.

        Raises:
            RecipeError: The settings are for recurrent models, but the recipe's is a Transformer.
        """
        if recipe.model.architecture != ARCHITECTURE:
            for option in recipe.used(ARCHITECTURE):
                raise RecipeError(f"{option} is for recurrent models: leave it out, or add architecture: recurrent.")
            return recipe
        return recipe.with_options(cell=self.cell or "lstm", attention=self.attention or "luong-general")

    def warmup(self, recipe: Recipe, steps: int) -> int | None:
        """Returns a tenth of the steps, within a limit."""
        return min(max(steps // 10, 1), MOST_WARMUP) if recipe.model.architecture == ARCHITECTURE else None

    def choices(self, recipe: Recipe) -> tuple[dict[str, Any], str]:
        """Returns the learning rate and the limit of the gradients' norm."""
        if recipe.model.architecture != ARCHITECTURE:
            return {}, ""
        rate, norm = recipe.optimization.learning_rate or LEARNING_RATE, recipe.optimization.max_grad_norm
        norm = MAX_GRAD_NORM if norm is None else norm
        clipped = f"gradients clipped to {norm:g}" if norm else "gradients never clipped"
        sentence = f"Optimisation: a learning rate of {rate:g} after the warm-up, {clipped}."
        return {"learning_rate": rate, "max_grad_norm": norm}, sentence
