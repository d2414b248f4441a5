"""Word-level distillation as a recipe asks for it: soft targets of a teacher beside those of the text."""

import dataclasses
from collections.abc import Callable

from vanilla_transformer.data.preparation import PreparedCorpus, TrainingCorpus
from vanilla_transformer.data.soft_targets import DistilledCorpus, SoftTargets
from vanilla_transformer.recipe.schema import Recipe, RecipeError
from vanilla_transformer.tasks import task_for


def recipe_of_distillation(recipe: Recipe) -> Recipe:
    """The recipe with its teacher's tokenizer, unless it has one.

    Raises:
        RecipeError: The recipe cannot be followed with soft targets; the message says what to leave out.
    """
    if recipe.distil_from is None:
        if recipe.distillation_weight != Recipe.distillation_weight:
            raise RecipeError("distillation_weight is for soft targets: give them as distil_from, or leave it out.")
        return recipe
    if not 0 < recipe.distillation_weight <= 1:
        raise RecipeError(
            f"distillation_weight must be above 0 and at most 1, not {recipe.distillation_weight}: leave distil_from "
            "out to learn from the text alone."
        )
    for name in ("bpe_dropout", "unigram_alpha"):
        if getattr(recipe, name) is not None:
            raise RecipeError(
                f"{name} splits words anew for each epoch, and the teacher has read them split once: leave {name} or "
                "distil_from out."
            )
    if not task_for(recipe).form.parallel:
        raise RecipeError(f"distil_from is for translation, and the task is {recipe.task}: leave it out.")
    if any(corpus.prepared is not None for corpus in recipe.train):
        raise RecipeError("distil_from needs the text that the teacher has read as --train, and no prepared corpus.")
    if recipe.tokenizer is not None or recipe.from_model is not None:
        return recipe
    SoftTargets(recipe.distil_from)  # What is missing there is said as such, and not as a missing tokenizer.
    return dataclasses.replace(recipe, tokenizer=recipe.distil_from)


def distilled(corpus: TrainingCorpus, recipe: Recipe, say: Callable[[str], None]) -> TrainingCorpus:
    """The corpus with a teacher's soft targets, if the recipe asks for it.

    Raises:
        SoftTargetsError: They are not those of this corpus.
    """
    if recipe.distil_from is None:
        return corpus
    targets = SoftTargets(recipe.distil_from)
    assert isinstance(corpus, PreparedCorpus)
    targets.check(corpus, recipe.max_length, recipe.target_direction)
    say(
        f"Distillation: {recipe.distillation_weight:.0%} of the loss is that of the teacher's {targets.facts.top_k} "
        f"likeliest tokens in {recipe.distil_from}."
    )
    return DistilledCorpus(corpus, targets, recipe.distillation_weight)
