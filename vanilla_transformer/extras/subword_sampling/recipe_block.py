"""Sub-word sampling as a part of the recipe."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vanilla_transformer.recipe.blocks import RecipeError, setting
from vanilla_transformer.recipe.schema import ExtraBlock, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from vanilla_transformer.data.token_corpus import TrainingCorpus

_ALGORITHMS = {"bpe_dropout": "bpe", "unigram_alpha": "unigram"}


@dataclass(frozen=True)
class SubwordSampling(ExtraBlock):
    """Sampling of sub-words: words are split anew in each epoch."""

    bpe_dropout: float | None = setting(least=0, below=1)
    """Split the words of `train` anew in each epoch with BPE-dropout. The value is the probability of skipping a
    merge; Provilkov et al. (2020) use 0.1. Off by default and at 0; dev and test are never sampled."""
    unigram_alpha: float | None = setting(least=0)
    """Split the words of `train` anew in each epoch with a unigram tokenizer: each split is drawn with its probability
    to the power of this value; Kudo (2018) uses 0.1 to 0.5. Off by default."""
    sides: Literal["both", "source", "target"] = setting("both", option="sampled_sides")
    """Sides of `train` that `bpe_dropout` or `unigram_alpha` applies to."""

    @property
    def strengths(self) -> dict[str, float]:
        """Returns the options that are on: leaving out no merges is plain byte-pair encoding."""
        given = {"bpe_dropout": self.bpe_dropout or None, "unigram_alpha": self.unigram_alpha}
        return {name: value for name, value in given.items() if value is not None}

    def complete(self, recipe: Recipe) -> Recipe:
        """Returns the recipe as it is.

        Raises:
            RecipeError: Its words cannot be sampled; the message says what to leave out.
        """
        from vanilla_transformer.tasks import task_for

        if not self.strengths:
            if self.sides != "both":
                raise RecipeError("sampled_sides is for sub-word sampling: add bpe_dropout or unigram_alpha.")
            return recipe
        name, task = next(iter(self.strengths)), task_for(recipe)
        if len(self.strengths) > 1:
            raise RecipeError(f"{' and '.join(self.strengths)} are two ways to split words at random: leave one out.")
        if self.sides != "both" and not task.form.parallel:
            raise RecipeError(f"sampled_sides is for pairs, but {task.name} has none: leave it out.")
        if task.form.packed:
            raise RecipeError(f"{name} is for whole texts, but packed blocks may end within a word: leave {name} out.")
        if any(corpus.prepared is not None for corpus in recipe.data.train):
            raise RecipeError(
                f"{name} splits words anew in each epoch, but the words of a prepared corpus are split already: "
                f"give the text as --train, or leave {name} out."
            )
        is_learned = recipe.tokenizer.name is None and recipe.start.model is None
        if is_learned and recipe.tokenizer.algorithm != _ALGORITHMS[name]:
            raise RecipeError(
                f"{name} is for the tokenizer_algorithm {_ALGORITHMS[name]}, not for {recipe.tokenizer.algorithm}."
            )
        return recipe

    def corpus(
        self,
        corpus: "TrainingCorpus",
        tokenizer: "PreTrainedTokenizerFast",
        recipe: Recipe,
        say: Callable[[str], None],
    ) -> "TrainingCorpus":
        """Returns the corpus with its words split anew for each epoch, if the recipe asks for it.

        Raises:
            CorpusError: The tokenizer uses another algorithm.
        """
        if not self.strengths:
            return corpus
        from vanilla_transformer.data.token_corpus import PreparedCorpus
        from vanilla_transformer.extras.subword_sampling.sampled_corpus import SampledCorpus
        from vanilla_transformer.tasks import task_for

        assert isinstance(corpus, PreparedCorpus)
        form = task_for(recipe).form
        texts = {column.name for column in form.columns if column.setting != "label_column"}
        columns = tuple(name for name in corpus.lengths if name in texts)
        drawn = SampledCorpus(
            corpus,
            tokenizer,
            **self.strengths,
            columns=columns if self.sides == "both" else (self.sides,),
            form=form,
            max_length=recipe.data.max_length,
            seed=recipe.optimization.seed,
        )
        places = [place for place, name in enumerate(corpus.lengths) if name in texts]
        now, usual = (" + ".join(f"{one.token_counts[place]:,}" for place in places) for one in (drawn, corpus))
        [(name, strength)] = self.strengths.items()
        say(
            f"Sub-word sampling: {name} {strength:g} on {' and '.join(drawn.columns)}; the first epoch has {now} "
            f"tokens, not {usual}."
        )
        return drawn
