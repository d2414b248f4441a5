"""Adds an option of attention: queries and keys are normalised (Henry et al. 2020, "Query-Key Normalization").

    python examples/extend/attention_option.py my-model

trains a model with the option on a few pairs, saves and loads it, and translates. The ONNX graph and the exports do
not support the option, so `Translator` falls back to `generate`, which runs `forward`.
"""

import argparse
from collections.abc import Sequence

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from vanilla_transformer import (
    Translator,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
)
from vanilla_transformer.loading.standard_models import unsupported_part
from vanilla_transformer.model.modeling_vanilla_transformer import MultiHeadAttention

PAIRS = {"one two": "1 2", "two one": "2 1", "three": "3", "one three": "1 3", "two two": "2 2", "three one": "3 1"}


class NormalisedHeads(nn.Linear):
    """A projection whose heads are normalised, each for itself."""

    def __init__(self, projection: nn.Linear, width: int) -> None:
        super().__init__(projection.in_features, projection.out_features, projection.bias is not None)
        self.weight, self.bias, self.width = projection.weight, projection.bias, width

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(..., d_model) to (..., heads * width)."""
        heads = super().forward(input).unflatten(-1, (-1, self.width))
        return nn.functional.layer_norm(heads, (self.width,)).flatten(-2)


class NormalisedConfig(VanillaTransformerConfig):
    """The configuration with the option."""

    model_type = "vanilla_transformer_normalised"
    query_key_norm: bool = True


class NormalisedTransformer(VanillaTransformerForConditionalGeneration):
    """The model with the option."""

    config_class = NormalisedConfig
    hub_classes: dict[str, str] = {}
    _auto_class = None  # Whoever loads it imports this file: its code is not saved beside it.

    def __init__(self, config: NormalisedConfig) -> None:
        super().__init__(config)
        for attention in [module for module in self.modules() if isinstance(module, MultiHeadAttention)]:
            if config.query_key_norm:
                attention.q_proj = NormalisedHeads(attention.q_proj, attention.d_k)
                attention.k_proj = NormalisedHeads(attention.k_proj, attention.d_k)


AutoConfig.register(NormalisedConfig.model_type, NormalisedConfig)
AutoModelForSeq2SeqLM.register(NormalisedConfig, NormalisedTransformer)


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, saves, loads and translates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="directory for the model")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args(argv)

    torch.manual_seed(1)
    tokenizer = train_tokenizer([*PAIRS, *PAIRS.values()] * 9, vocab_size=270)
    sizes = {"d_model": 32, "d_ff": 64, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    model = NormalisedTransformer(NormalisedConfig(vocab_size=len(tokenizer), **sizes))
    batch = tokenizer([*PAIRS], text_target=[*PAIRS.values()], padding=True, return_tensors="pt")
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(arguments.steps):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)

    loaded = AutoModelForSeq2SeqLM.from_pretrained(arguments.output).eval()
    print(f"loss {loss.item():.3f}; decoded by forward: {unsupported_part(loaded, ['relu'])}")
    for translation in Translator(loaded, tokenizer)([*PAIRS]):
        print(translation.text)


if __name__ == "__main__":
    main()
