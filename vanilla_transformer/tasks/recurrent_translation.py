"""Translation by recurrent encoder-decoders, from the fields of a recipe."""

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.recipe.defaults import MODEL_FIELDS
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.recurrent.configuration_recurrent_encoder_decoder import (
    RecurrentEncoderDecoderConfig,
)
from vanilla_transformer.tasks.interface import refuse_options
from vanilla_transformer.tasks.translation import Translation

# Width and layers, with about as many parameters as the Transformer of that name; `big` is that of Luong et al. 2015.
SIZES = {"tiny": (192, 2), "small": (384, 2), "base": (768, 3), "big": (1000, 4)}


class RecurrentTranslation(Translation):
    """Pairs of texts: each target token is an item of the loss."""

    config_class = RecurrentEncoderDecoderConfig

    def config(self, recipe: Recipe) -> RecurrentEncoderDecoderConfig:
        """Returns the sizes of the recipe's model: its preset, overridden by the recipe's own fields.

        Raises:
            RecipeError: It sets a field that only the Transformer has, different numbers of encoder and decoder
                layers, or a preset that recurrent models do not have.
        """
        refuse_options(recipe, self.name, "documents", "classification")
        for option in recipe.used(*(name for name in MODEL_FIELDS if not hasattr(self.config_class(), name))):
            raise RecipeError(
                f"{option} is for Transformers only: leave it out, or leave out architecture: recurrent."
            )
        preset = recipe.model.preset or "base"
        if preset not in SIZES:
            raise RecipeError(f"Recurrent models have no preset {preset!r}: there are {', '.join(SIZES)}.")
        width, preset_layers = SIZES[preset]
        layers = {recipe.model.encoder_layers, recipe.model.decoder_layers} - {None} or {preset_layers}
        if len(layers) > 1:
            raise RecipeError(
                "Each decoder layer starts from the last state of its encoder layer: encoder_layers and "
                f"decoder_layers must be equal, not {recipe.model.encoder_layers} and "
                f"{recipe.model.decoder_layers}."
            )
        own = (*(name for name in MODEL_FIELDS if hasattr(self.config_class, name)), "cell", "attention")
        given = {name: recipe[name] for name in (*own, "attention_window") if recipe[name] is not None}
        return self.config_class(**{"d_model": width, "num_layers": layers.pop(), **given})
