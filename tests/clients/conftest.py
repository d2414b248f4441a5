"""A tokenizer, and a model of each family with it in a directory, for the tests of other people's programs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)

TEXTS = ["Hello king", "the cat sat on the mat", "a dog ran", "cats and dogs sit"] * 4
SIZES: dict[str, Any] = {"d_model": 32, "d_ff": 64, "num_heads": 4, "dropout": 0.0}
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "encoder-decoder": (
        VanillaTransformerForConditionalGeneration,
        VanillaTransformerConfig,
        {**SIZES, "encoder_layers": 1, "decoder_layers": 2},
    ),
    "encoder": (VanillaTransformerEncoderForMaskedLM, VanillaTransformerEncoderConfig, {**SIZES, "encoder_layers": 2}),
    "decoder": (VanillaTransformerDecoderForCausalLM, VanillaTransformerDecoderConfig, {**SIZES, "decoder_layers": 2}),
    "recurrent": (
        RecurrentEncoderDecoderForConditionalGeneration,
        RecurrentEncoderDecoderConfig,
        {"d_model": 32, "num_layers": 2, "dropout": 0.0},
    ),
}
# How `train` has the texts of a family begin and end.
FRAMES = {"decoder": {"begins": True, "ends": False}, "encoder": {"begins": True, "mask_token": True}}


def build(family: str, vocab_size: int) -> Any:
    """A model whose weights are the same each time."""
    model_class, config_class, fields = FAMILIES[family]
    torch.manual_seed(0)
    return model_class(config_class(vocab_size=vocab_size, **fields)).eval()


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each family, saved with a tokenizer that frames texts as the family has them."""
    made = {}
    for family in FAMILIES:
        tokenizer = VanillaTransformerTokenizer.train(TEXTS, vocab_size=290, **FRAMES.get(family, {}))
        made[family] = tmp_path_factory.mktemp("models") / family
        build(family, len(tokenizer)).save_pretrained(made[family])
        tokenizer.save_pretrained(made[family])
    return made
