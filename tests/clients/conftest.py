"""A model with its tokenizer in a directory, of the families that other people's programs take."""

from pathlib import Path

import pytest
from small_models import random_model, save

from vanilla_transformer.tokenizer import train_tokenizer

TEXTS = ["Hello king", "the cat sat on the mat", "a dog ran", "cats and dogs sit"] * 4
# How `train` has the texts of a family begin and end.
FAMILIES = {
    "decoder": ("language-model", {"begins": True, "ends": False}),
    "encoder": ("masked-language-model", {"begins": True, "mask_token": True}),
}


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for family, (kind, frame) in FAMILIES.items():
        tokenizer = train_tokenizer(TEXTS, vocab_size=290, **frame)
        made[family] = tmp_path_factory.mktemp("models") / family
        save(random_model(kind, vocab_size=len(tokenizer)), tokenizer, made[family])
    return made
