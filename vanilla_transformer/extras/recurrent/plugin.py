"""Recurrent encoder-decoders: a family of models, their block of the recipe, and their training."""

SEAMS = {
    "family": {"recurrent": "family:models"},
    "architecture": {"recurrent": "task:RecurrentTranslation"},
    "recipe": {"recurrent": "recipe_block:Recurrent"},
}
