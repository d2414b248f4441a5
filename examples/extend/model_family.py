"""Adds a model family: the Transformer with its norms before the sub-layers (Xiong et al. 2020, "On Layer Norm").

    python examples/extend/model_family.py train.en train.de my-model

The family has a `model_type` of its own. Registered, it is trained by the package's loop for translation, saved,
loaded and decoded. A process that loads such a model has to import this file first. The ONNX graph and the exports do
not support the layers, so `Translator` falls back to `generate`, which runs `forward`.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from vanilla_transformer import Recipe, VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, train
from vanilla_transformer.model.modeling_vanilla_transformer import DecoderLayer, EncoderLayer
from vanilla_transformer.registration import register_family
from vanilla_transformer.tasks import register_task
from vanilla_transformer.tasks.translation import Translation


class PreNormConfig(VanillaTransformerConfig):
    """The sizes of the Transformer."""

    model_type = "pre_norm_transformer"


class PreNormEncoderLayer(EncoderLayer):
    """x + Sublayer(LayerNorm(x)) around self-attention and the feed-forward network."""

    def forward(self, hidden_states: torch.Tensor, attention_mask: Any = None, **kwargs: Any) -> torch.Tensor:
        """Maps (batch, source length, d_model) to the same shape."""
        x = hidden_states
        attended, _ = self.self_attention(self.self_attention_norm(x), attention_mask, **kwargs)
        x = x + self.dropout(attended)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class PreNormDecoderLayer(DecoderLayer):
    """Like the encoder's layer, with attention to the encoder's output between its two sub-layers."""

    def forward(
        self, hidden_states: torch.Tensor, mask: Any, source: torch.Tensor, source_mask: Any, cache: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Maps (batch, target length, d_model) to the same shape."""
        x = hidden_states
        attended, _ = self.self_attention(self.self_attention_norm(x), mask, cache=cache, **kwargs)
        x = x + self.dropout(attended)
        attended, _ = self.cross_attention(self.cross_attention_norm(x), source_mask, source, cache=cache, **kwargs)
        x = x + self.dropout(attended)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class FinalNorm(nn.LayerNorm):
    """The norm after the last layer, as one more layer."""

    def forward(self, input: torch.Tensor, *masks: Any, **kwargs: Any) -> torch.Tensor:
        """Maps any shape to the same shape."""
        return super().forward(input)


class PreNormTransformer(VanillaTransformerForConditionalGeneration):
    """The model of the family."""

    config_class = PreNormConfig
    hub_classes: dict[str, str] = {}
    _auto_class = None  # Whoever loads it imports this file: its code is not saved beside it.

    def __init__(self, config: PreNormConfig) -> None:
        super().__init__(config)
        stacks = (self.model.encoder, PreNormEncoderLayer), (self.model.decoder, PreNormDecoderLayer)
        for stack, kind in stacks:
            layers = [kind(config, number) for number in range(len(stack.layers))]
            stack.layers = nn.ModuleList([*layers, FinalNorm(config.d_model)])
        self.post_init()


class PreNormTranslation(Translation):
    """Translation by a model of the family."""

    name = "pre-norm-translation"
    config_class = PreNormConfig


register_family(PreNormConfig, {AutoModelForSeq2SeqLM: PreNormTransformer})
register_task(PreNormTranslation())


def main(argv: Sequence[str] | None = None) -> None:
    """Trains a model of the family."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("source", "target", "output"):
        parser.add_argument(name)
    parser.add_argument("--max-steps", type=int)
    arguments = parser.parse_args(argv)
    recipe = Recipe.of(
        task=PreNormTranslation.name,
        train=(arguments.source, arguments.target),
        max_steps=arguments.max_steps,
        output=arguments.output,
    )
    print(train(recipe).directory)


if __name__ == "__main__":
    main()
