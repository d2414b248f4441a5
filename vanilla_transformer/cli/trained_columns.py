"""Default columns of a table for a command: those that its model was trained on."""

from pathlib import Path

from vanilla_transformer.data.columns import TextForm
from vanilla_transformer.data.sources import CorpusSpec
from vanilla_transformer.recipe.reading import load_recipe


def as_in_training(corpus: CorpusSpec, model: str, form: TextForm) -> CorpusSpec:
    """Returns a corpus that names no columns with those of a model's recipe, if it has them."""
    recipe = Path(model) / "recipe.yaml"
    if any(corpus.columns) or not recipe.is_file():
        return corpus
    learned = load_recipe(recipe)
    corpora = (one for field in ("train", "dev", "test") for one in learned.data.corpora(field))
    known = next((one for one in corpora if any(one.columns)), None)
    if known is None:
        return corpus
    from vanilla_transformer.data.corpus import with_columns_of

    return with_columns_of(corpus, known, form)
