"""Small random models of each kind, and one that translates and knows its alignment heads."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_models import save, single_stack

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.extras.demo.shown import ShownModel

PAIRS = {
    "A dog runs in the park.": "Ein Hund läuft im Park.",
    "Two men wait for the bus.": "Zwei Männer warten auf den Bus.",
    "A dog waits.": "Ein Hund wartet.",
    "Two men run.": "Zwei Männer laufen.",
}
TEXTS = [*PAIRS, *PAIRS.values()] * 5
SIZES = {"d_model": 32, "d_ff": 64, "num_heads": 4}
CARD = """---
widget:
- text: A dog runs.
- text: 5
---

# A card
"""


@pytest.fixture(scope="session")
def translating(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a model that has learned four sentences, with alignment heads and an example in its card."""
    directory = tmp_path_factory.mktemp("demo") / "en-de"
    tokenizer = VanillaTransformerTokenizer.train(TEXTS, 300)
    torch.manual_seed(5)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), encoder_layers=2, decoder_layers=2, dropout=0.0, **SIZES
    )
    model = VanillaTransformerForConditionalGeneration(config)
    inputs = tokenizer([*PAIRS], text_target=[*PAIRS.values()], padding=True, return_tensors="pt")
    inputs["labels"][inputs["labels"] == tokenizer.pad_token_id] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(100):
        optimizer.zero_grad()
        model(**inputs).loss.backward()
        optimizer.step()
    settings = model.generation_config
    settings.alignment_heads, settings.alignment_step, settings.max_length_beyond_source = [[1, 0]], "input", 5
    save(model, tokenizer, directory)
    (directory / "README.md").write_text(CARD)
    return str(directory)


@pytest.fixture(scope="session")
def one_stack(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Directories of models of one stack, by what they are asked."""
    directory = tmp_path_factory.mktemp("demo")
    torch.manual_seed(0)
    kinds = {
        "classify": "classifier",
        "tag": "tagger",
        "fill": "masked-language-model",
        "continue": "language-model",
    }
    most = {"max_position_embeddings": 200}
    return {
        name: save(*single_stack(kind, TEXTS, **SIZES, **(most if name == "continue" else {})), directory / name)
        for name, kind in kinds.items()
    }


@pytest.fixture(scope="session")
def shown(translating: str) -> ShownModel:
    return ShownModel.load(translating, max_characters=200)


class Answered:
    """A kind of model whose answers a function gives."""

    def __init__(self, kind, answers):
        self.kind, self.answers = kind, answers

    def __getattr__(self, name):
        return getattr(self.kind, name)


@pytest.fixture
def answering(shown: ShownModel) -> Callable[..., ShownModel]:
    """Shows the same model, with the answers of a function."""
    return lambda answers: ShownModel(shown.name, Answered(shown.kind, answers), max_characters=200)


@pytest.fixture
def without_heads(translating: str, tmp_path: Path) -> str:
    """The same model, for which no alignment heads were chosen."""
    for file in Path(translating).iterdir():
        (tmp_path / file.name).symlink_to(file)
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").unlink()
    del settings["alignment_heads"]
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    return str(tmp_path)
