"""Small random models of each family, written as pages."""

from pathlib import Path
from typing import Any

import pytest
import torch
from exploring import Explored
from small_models import save, single_stack, unigram_tokenizer

from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
)
from vanilla_transformer.tokenizer import train_tokenizer

TEXTS = ["a dog runs in the park", "two men wait for the bus", "telephone, naïve Ærø", "tokens </s> and more"] * 5
SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 24, "num_heads": 2}
OTHER = {
    "d_k": 6,
    "d_v": 10,
    "attention_bias": True,
    "output_bias": True,
    "activation_function": "gelu",
    "positional_encoding": "learned",
    "max_position_embeddings": 40,
    "tie_word_embeddings": False,
}


def lively(model: Any) -> Any:
    """With norms that do something, and scores that are not all alike."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weight.add_(0.3 * torch.randn_like(weight))
            elif weight.dim() == 2:
                weight.mul_(1.5)
    if model.can_generate():
        model.generation_config.max_length_beyond_source = 4
    return model.eval()


def build(kind: str) -> tuple[Any, Any]:
    torch.manual_seed(3)
    if kind in ("plain", "other", "recurrent-lstm", "recurrent-gru"):
        tokenizer = (unigram_tokenizer if kind == "other" else train_tokenizer)(TEXTS, 300)
        size = len(tokenizer)
        if kind.startswith("recurrent"):
            settings = {
                "recurrent-lstm": {"attention": "luong-general", "attention_window": 3},
                "recurrent-gru": {"cell": "gru", "attention": "bahdanau"},
            }[kind]
            recurrent = RecurrentEncoderDecoderConfig(vocab_size=size, d_model=16, num_layers=2, **settings)
            return lively(RecurrentEncoderDecoderForConditionalGeneration(recurrent)), tokenizer
        fields = SIZES | {"encoder_layers": 2, "decoder_layers": 2} | (OTHER if kind == "other" else {})
        config = VanillaTransformerConfig(vocab_size=size, **fields)
        return lively(VanillaTransformerForConditionalGeneration(config)), tokenizer
    model, tokenizer = single_stack(kind, TEXTS, **SIZES)
    return lively(model), tokenizer


@pytest.fixture(scope="session")
def explored(tmp_path_factory: pytest.TempPathFactory):
    """By the name of a model: the model, its tokenizer and the folder of its page."""
    made: dict[str, Explored] = {}

    def get(kind: str) -> Explored:
        if kind not in made:
            made[kind] = Explored.write(*build(kind), tmp_path_factory.mktemp("explore") / kind)
        return made[kind]

    return get


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a model, with an example in its card."""
    model, tokenizer = build("plain")
    folder = tmp_path_factory.mktemp("saved") / "plain"
    save(model, tokenizer, folder)
    (folder / "README.md").write_text("---\nwidget:\n- text: a dog\n---\n")
    return folder
