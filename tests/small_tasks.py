"""Fixtures for tests of tasks: small corpora whose right answer stands in the text, and a model of each."""

import random

import pytest

from vanilla_transformer.recipe.schema import Recipe

ANIMALS, PLANTS, VERBS = ["dog", "cat", "cow", "hen"], ["oak", "elm", "fir", "fig"], ["sees", "likes", "is"]
_STEPS = {
    "preset": "tiny",
    "encoder_layers": 1,
    "d_model": 32,
    "d_ff": 64,
    "num_heads": 2,
    "dropout": 0.1,
    "vocab_size": 280,
    "batch_tokens": 200,
    "batches_per_step": 2,
    "max_steps": 60,
    "warmup_steps": 20,
    "learning_rate_scale": 0.3,
    "save_steps": 20,
    "eval_steps": 30,
    "average_checkpoints": 2,
    "precision": "float32",
}


def _sentence(draw, words):
    return f"the {draw.choice(words)} {draw.choice(VERBS)} the {draw.choice(words)}"


@pytest.fixture(scope="session")
def labelled(tmp_path_factory) -> Recipe:
    """Sentences about animals or about plants."""
    directory, draw = tmp_path_factory.mktemp("labelled"), random.Random(0)
    for name, size in (("train", 120), ("dev", 20)):
        rows = [draw.choice([("animal", ANIMALS), ("plant", PLANTS)]) for _ in range(size)]
        text = "".join(f"{label}\t{_sentence(draw, words)}\n" for label, words in rows)
        (directory / f"{name}.tsv").write_text("label\ttext\n" + text)
    corpora = {name: (str(directory / f"{name}.tsv"),) for name in ("train", "dev")}
    return Recipe.of(task="text-classification", examples=("the dog sees the cow",), **corpora, **_STEPS)


@pytest.fixture(scope="session")
def tagged(tmp_path_factory) -> Recipe:
    """Sentences whose words are tagged by what they are."""
    directory, draw = tmp_path_factory.mktemp("tagged"), random.Random(0)
    tags = dict.fromkeys(VERBS, "O") | {"the": "O"} | dict.fromkeys(ANIMALS, "B-ANI") | dict.fromkeys(PLANTS, "B-PLA")
    for name, size in (("train", 120), ("dev", 20)):
        sentences = [_sentence(draw, draw.choice([ANIMALS, PLANTS])).split() for _ in range(size)]
        text = ["".join(f"{word}\t{tags[word]}\n" for word in words) for words in sentences]
        (directory / f"{name}.conll").write_text("\n".join(text))
    corpora = {name: (str(directory / f"{name}.conll"),) for name in ("train", "dev")}
    return Recipe.of(task="token-classification", examples=("the oak likes the cat",), **corpora, **_STEPS)


@pytest.fixture(scope="session")
def lines(tmp_path_factory) -> Recipe:
    """Sentences, a line each, for a language model."""
    directory, draw = tmp_path_factory.mktemp("lines"), random.Random(0)
    for name, size in (("train", 120), ("dev", 20)):
        text = "".join(f"{_sentence(draw, draw.choice([ANIMALS, PLANTS]))}\n" for _ in range(size))
        (directory / f"{name}.txt").write_text(text)
    corpora = {name: (str(directory / f"{name}.txt"),) for name in ("train", "dev")}
    steps = {**_STEPS, "decoder_layers": 1, "max_length": 16}
    del steps["encoder_layers"]
    return Recipe.of(task="language-modeling", examples=("the dog sees",), **corpora, **steps)


@pytest.fixture(scope="session")
def masked_lines(lines) -> Recipe:
    """The same for a masked language model."""
    changes = {"task": "masked-language-modeling", "encoder_layers": 1, "decoder_layers": None}
    return lines.with_options(examples=("the <mask> sees", "the dog"), **changes)
