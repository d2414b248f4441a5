"""The recurrent encoder-decoders that the paper replaced, by the fields of a recipe."""

from vanilla_transformer.model.configuration_recurrent_encoder_decoder import RecurrentEncoderDecoderConfig
from vanilla_transformer.recipe.schema import Recipe, RecipeError

# Width and layers: about as many parameters as the Transformer of that name; `big` is Luong et al.'s of 2015.
SIZES = {"tiny": (192, 2), "small": (384, 2), "base": (768, 3), "big": (1000, 4)}
# What only the Transformer has.
_FOREIGN = ("d_ff", "num_heads", "d_k", "d_v", "positional_encoding", "attention_dropout", "activation_dropout")
_OWN = ("cell", "attention", "attention_window", "dropout", "label_smoothing", "d_model")


def recurrent_config(recipe: Recipe) -> RecurrentEncoderDecoderConfig:
    """The sizes of the model that the recipe describes: its preset's, with the fields that it gives itself.

    Raises:
        RecipeError: It gives what only the Transformer has, other layers to the encoder than to the decoder, or a
            preset that recurrent models do not have.
    """
    for name in _FOREIGN:
        if getattr(recipe, name) is not None:
            raise RecipeError(f"{name} is the Transformer's: leave it out, or leave out architecture: recurrent.")
    if recipe.target_direction != Recipe.target_direction:
        raise RecipeError(
            "Recurrent models write from left to right: leave target_direction out, or leave out architecture: "
            "recurrent."
        )
    preset = recipe.preset or "base"
    if preset not in SIZES:
        raise RecipeError(f"Recurrent models have no preset {preset!r}: there are {', '.join(SIZES)}.")
    width, preset_layers = SIZES[preset]
    layers = {recipe.encoder_layers, recipe.decoder_layers} - {None} or {preset_layers}
    if len(layers) > 1:
        raise RecipeError(
            "The encoder's last states start the decoder's layers one by one: encoder_layers and decoder_layers must "
            f"be equal, not {recipe.encoder_layers} and {recipe.decoder_layers}."
        )
    given = {name: getattr(recipe, name) for name in _OWN if getattr(recipe, name) is not None}
    if recipe.vocab_size is not None:
        given["vocab_size"] = recipe.vocab_size
    return RecurrentEncoderDecoderConfig(**{"d_model": width, "num_layers": layers.pop(), **given})
