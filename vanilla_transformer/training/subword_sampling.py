"""Sub-word sampling for a recipe."""

from collections.abc import Callable

from transformers import PreTrainedTokenizerFast

from vanilla_transformer.data.preparation import PreparedCorpus, TrainingCorpus
from vanilla_transformer.data.sampled import SampledCorpus, SubwordSampling
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import task_for

_ALGORITHMS = {"bpe_dropout": "bpe", "unigram_alpha": "unigram"}
_OFF = "bpe_dropout", 0


def check_sampling(recipe: Recipe) -> None:
    """Refuses, before any text is read, sub-word sampling that is not possible.

    Raises:
        RecipeError: The message says what to leave out.
    """
    given = _asked_for(recipe)
    if not given:
        if recipe.sampling.sides != "both":
            raise RecipeError("sampled_sides is for sub-word sampling: add bpe_dropout or unigram_alpha.")
        return
    name, task = given[0], task_for(recipe)
    if len(given) > 1:
        raise RecipeError(f"{' and '.join(given)} are two ways to split words at random: leave one out.")
    if recipe.sampling.sides != "both" and not task.form.parallel:
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


def _asked_for(recipe: Recipe) -> list[str]:
    """Returns the options that are on: leaving out no merges is plain byte-pair encoding."""
    return [name for name in _ALGORITHMS if recipe[name] is not None and (name, recipe[name]) != _OFF]


def sampled(
    corpus: PreparedCorpus, tokenizer: PreTrainedTokenizerFast, recipe: Recipe, say: Callable[[str], None]
) -> TrainingCorpus:
    """Returns the corpus with its words split anew for each epoch, if the recipe asks for it.

    Raises:
        CorpusError: The tokenizer uses another algorithm.
    """
    names = [f"{name} {recipe[name]:g}" for name in _asked_for(recipe)]
    if not names:
        return corpus
    form = task_for(recipe).form
    texts = {column.name for column in form.columns if column.setting != "label_column"}
    columns = tuple(name for name in corpus.lengths if name in texts)
    if recipe.sampling.sides != "both":
        columns = (recipe.sampling.sides,)
    sampling = SubwordSampling(recipe.sampling.bpe_dropout, recipe.sampling.unigram_alpha, columns)
    drawn = SampledCorpus(
        corpus, tokenizer, sampling, form=form, max_length=recipe.data.max_length, seed=recipe.optimization.seed
    )
    places = [place for place, name in enumerate(corpus.lengths) if name in texts]
    now, usual = (" + ".join(f"{one.token_counts[place]:,}" for place in places) for one in (drawn, corpus))
    say(f"Sub-word sampling: {names[0]} on {' and '.join(columns)}; the first epoch has {now} tokens, not {usual}.")
    return drawn
