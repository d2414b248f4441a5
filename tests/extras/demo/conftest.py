"""Small random models of each kind, and one that translates and knows its alignment heads."""

import json
from pathlib import Path

import pytest
import torch

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerEncoderForSequenceClassification,
    VanillaTransformerEncoderForTokenClassification,
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
LABELS = ["animal", "plant", "<b>stone</b>"]
CARD = """---
widget:
- text: A dog runs.
- text: 5
---

# A card
"""


def save(directory, tokenizer, model) -> str:
    model.eval().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


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
    save(directory, tokenizer, model)
    (directory / "README.md").write_text(CARD)
    return str(directory)


@pytest.fixture(scope="session")
def one_stack(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Directories of models of one stack, by what they are asked."""
    directory = tmp_path_factory.mktemp("demo")
    torch.manual_seed(0)
    tokenizer = VanillaTransformerTokenizer.train(TEXTS, 300, begins=True, mask_token=True)
    encoder = VanillaTransformerEncoderConfig(vocab_size=len(tokenizer), encoder_layers=2, **SIZES)
    prompts = VanillaTransformerTokenizer.train(TEXTS, 300, begins=True, ends=False)
    decoder = VanillaTransformerDecoderConfig(
        vocab_size=len(prompts), decoder_layers=2, max_position_embeddings=200, **SIZES
    )
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {name: number for number, name in enumerate(LABELS)}}
    labelled = VanillaTransformerEncoderConfig(**(encoder.to_dict() | names))
    models = {
        "classify": (tokenizer, VanillaTransformerEncoderForSequenceClassification(labelled)),
        "tag": (tokenizer, VanillaTransformerEncoderForTokenClassification(labelled)),
        "fill": (tokenizer, VanillaTransformerEncoderForMaskedLM(encoder)),
        "continue": (prompts, VanillaTransformerDecoderForCausalLM(decoder)),
    }
    return {name: save(directory / name, *model) for name, model in models.items()}


@pytest.fixture(scope="session")
def shown(translating: str) -> ShownModel:
    return ShownModel.load(translating, max_characters=200)


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
