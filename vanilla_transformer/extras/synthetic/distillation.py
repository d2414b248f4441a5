"""Word-level distillation as a part of the recipe: a teacher's soft targets beside the targets of the text."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vanilla_transformer.recipe.blocks import RecipeError, setting
from vanilla_transformer.recipe.schema import ExtraBlock, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from vanilla_transformer.data.token_corpus import TrainingCorpus


@dataclass(frozen=True)
class Distillation(ExtraBlock):
    """A teacher's soft targets as a part of the training loss (Kim and Rush 2016)."""

    soft_targets: str | None = setting(option="distil_from", metavar="DIR")
    """Directory that `soft-targets` made from this same text: the model also learns the teacher's probabilities for
    each target token (word-level distillation; Kim and Rush 2016), and uses the teacher's tokenizer."""
    weight: float = setting(0.5, option="distillation_weight")
    """Weight of the teacher's loss; the rest is the loss on the text itself, with its label smoothing."""

    @property
    def place(self) -> str | None:
        """Directory of the soft targets."""
        return self.soft_targets

    def complete(self, recipe: Recipe) -> Recipe:
        """Returns the recipe with the teacher's tokenizer, unless it has one of its own.

        Raises:
            RecipeError: The recipe cannot be combined with soft targets; the message says what to leave out.
        """
        if self.soft_targets is None:
            if self.weight != type(self).weight:
                raise RecipeError(
                    "distillation_weight is for soft targets: give them as distil_from, or leave it out."
                )
            return recipe
        from vanilla_transformer.extras.synthetic.distilled_corpus import SoftTargets
        from vanilla_transformer.tasks import task_for

        if not 0 < self.weight <= 1:
            raise RecipeError(
                f"distillation_weight must be above 0 and at most 1, not {self.weight}: leave distil_from out to "
                "learn from the text alone."
            )
        for name in recipe.used("sampling"):
            raise RecipeError(
                f"{name} splits words anew for each epoch, but the teacher has read only one split: leave {name} or "
                "distil_from out."
            )
        if not task_for(recipe).form.parallel:
            raise RecipeError(f"distil_from is for translation, but the task is {recipe.task}: leave it out.")
        if any(corpus.prepared is not None for corpus in recipe.data.train):
            raise RecipeError(
                "distil_from needs the text that the teacher has read as --train, not a prepared corpus."
            )
        if recipe.tokenizer.name is not None or recipe.start.model is not None:
            return recipe
        SoftTargets(self.soft_targets)  # Reports missing soft targets before a missing tokenizer.
        return recipe.with_options(tokenizer=self.soft_targets)

    def corpus(
        self,
        corpus: "TrainingCorpus",
        tokenizer: "PreTrainedTokenizerFast",
        recipe: Recipe,
        say: Callable[[str], None],
    ) -> "TrainingCorpus":
        """Returns the corpus, with a teacher's soft targets if the recipe asks for them.

        Raises:
            SoftTargetsError: The soft targets were made from another corpus.
        """
        if self.soft_targets is None:
            return corpus
        from vanilla_transformer.data.token_corpus import PreparedCorpus
        from vanilla_transformer.extras.synthetic.distilled_corpus import DistilledCorpus, SoftTargets

        targets = SoftTargets(self.soft_targets)
        assert isinstance(corpus, PreparedCorpus)
        targets.check(corpus, recipe.data.max_length)
        say(
            f"Distillation: {self.weight:.0%} of the loss comes from the teacher's {targets.facts.top_k} "
            f"likeliest tokens in {self.soft_targets}."
        )
        return DistilledCorpus(corpus, targets, self.weight)
