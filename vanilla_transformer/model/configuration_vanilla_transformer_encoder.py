"""Sizes and settings of the encoder of "Attention Is All You Need" on its own."""

from typing import Any

from .configuration_vanilla_transformer import STACK_TP_PLAN, VanillaTransformerBaseConfig


class VanillaTransformerEncoderConfig(VanillaTransformerBaseConfig):
    """Sizes and settings of an encoder-only model; the defaults are the encoder of the paper's base model.

    In addition to the arguments of `VanillaTransformerBaseConfig`:

    Args:
        encoder_layers: N (section 3.1).
        label_smoothing: Off by default: section 5.4 uses it for translation, where it "hurts perplexity, but improves
            BLEU".
        classifier_pooling: State that a sequence classifier reads: `mean`, the mean over all tokens that are not
            padding, or `first`, that of the first token.
    """

    model_type = "vanilla_transformer_encoder"
    attribute_map = {**VanillaTransformerBaseConfig.attribute_map, "num_hidden_layers": "encoder_layers"}
    base_model_tp_plan = STACK_TP_PLAN

    encoder_layers: int = 6
    label_smoothing: float | int = 0.0
    classifier_pooling: str = "mean"

    def __post_init__(self, **kwargs: Any) -> None:
        if self.classifier_pooling not in ("first", "mean"):
            raise ValueError(f"classifier_pooling must be 'first' or 'mean', not {self.classifier_pooling!r}.")
        super().__post_init__(**kwargs)
