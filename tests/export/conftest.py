"""A tiny model that has learned something, in a directory."""

import random
from pathlib import Path

import pytest
import torch
from small_models import save

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
)
from vanilla_transformer.cli import main
from vanilla_transformer.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def words() -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices("abcdefgh", k=rng.randint(1, 7))) for _ in range(40)]


@pytest.fixture(scope="session")
def spelled_backwards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a model that begins to spell words backwards: its outputs differ, and they end."""
    torch.manual_seed(0)
    rng = random.Random(1)
    tokenizer = train_tokenizer(["abcdefgh"], 260, "character")
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), d_model=32, d_ff=64, num_heads=4, encoder_layers=1, decoder_layers=1, dropout=0.0
    )
    model = VanillaTransformerForConditionalGeneration(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(120):
        batch = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 7))) for _ in range(32)]
        inputs = tokenizer(batch, return_tensors="pt", padding=True)
        labels = tokenizer([word[::-1] for word in batch], return_tensors="pt", padding=True)["input_ids"]
        loss = model(**inputs, labels=labels.masked_fill(labels == 0, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    directory = tmp_path_factory.mktemp("model") / "backwards"
    save(model, tokenizer, directory)
    return directory


@pytest.fixture(scope="session")
def onnx_export(spelled_backwards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model for ONNX Runtime."""
    output = tmp_path_factory.mktemp("onnx") / "onnx"
    assert main(["export", str(spelled_backwards), str(output), "--to", "onnx"]) == 0
    return output
