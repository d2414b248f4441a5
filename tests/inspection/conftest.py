"""A small model with a tokenizer of its own."""

import pytest
from small_models import random_model, save

from vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer.tokenizer import train_tokenizer

TEXTS = ["A dog runs in the park.", "Two men wait for the bus.", "Ein Hund läuft im Park.", "Zwei Männer warten."] * 5


@pytest.fixture(scope="package")
def tokenizer() -> VanillaTransformerTokenizer:
    return train_tokenizer(TEXTS, 300)


@pytest.fixture(scope="package")
def model(tokenizer: VanillaTransformerTokenizer) -> VanillaTransformerForConditionalGeneration:
    return random_model("translator", vocab_size=len(tokenizer), decoder_layers=3, dropout=0.5)


@pytest.fixture(scope="package")
def model_directory(model, tokenizer, tmp_path_factory) -> str:
    return save(model, tokenizer, tmp_path_factory.mktemp("model"))
