"""A small model with a tokenizer of its own."""

import pytest
import torch
from small_models import save

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)

TEXTS = ["A dog runs in the park.", "Two men wait for the bus.", "Ein Hund läuft im Park.", "Zwei Männer warten."] * 5


@pytest.fixture(scope="package")
def tokenizer() -> VanillaTransformerTokenizer:
    return VanillaTransformerTokenizer.train(TEXTS, 300)


@pytest.fixture(scope="package")
def model(tokenizer: VanillaTransformerTokenizer) -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(0)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), d_model=32, d_ff=64, num_heads=4, encoder_layers=2, decoder_layers=3, dropout=0.5
    )
    return VanillaTransformerForConditionalGeneration(config).eval()


@pytest.fixture(scope="package")
def model_directory(model, tokenizer, tmp_path_factory) -> str:
    return save(model, tokenizer, tmp_path_factory.mktemp("model"))
