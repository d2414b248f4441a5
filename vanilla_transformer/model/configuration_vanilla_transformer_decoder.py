"""Sizes and settings of the decoder of "Attention Is All You Need" on its own."""

from typing import Any

from .configuration_vanilla_transformer import STACK_TP_PLAN, VanillaTransformerBaseConfig


class VanillaTransformerDecoderConfig(VanillaTransformerBaseConfig):
    """Sizes and settings of a decoder-only model; the defaults are the decoder of the paper's base model.

    In addition to the arguments of `VanillaTransformerBaseConfig`:

    Args:
        decoder_layers: N (section 3.1); these layers do not attend to an encoder's output.
        label_smoothing: Off by default: section 5.4 uses it for translation, where it "hurts perplexity, but improves
            BLEU", and a language model is measured by its perplexity.
        documents: The form of its training text: `lines`, texts that end in `</s>`, or `packed`, continuous text.
    """

    model_type = "vanilla_transformer_decoder"
    attribute_map = {**VanillaTransformerBaseConfig.attribute_map, "num_hidden_layers": "decoder_layers"}
    base_model_tp_plan = STACK_TP_PLAN

    decoder_layers: int = 6
    label_smoothing: float | int = 0.0
    documents: str = "lines"
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if self.documents not in ("lines", "packed"):
            raise ValueError(f"documents must be 'lines' or 'packed', not {self.documents!r}.")
        super().__post_init__(**kwargs)
