"""Fixtures of the tests of tasks: small corpora, and a model of each, trained when a test first asks for it."""

import gzip
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from small_tasks import labelled, lines, masked_lines, tagged

from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.run import train

__all__ = ["labelled", "lines", "masked_lines", "tagged"]


@pytest.fixture(scope="session")
def packed(lines, tmp_path_factory) -> Recipe:  # noqa: F811
    """A text of short lines, and another one to measure on, one of whose characters is new."""
    directory = tmp_path_factory.mktemp("packed")
    text = "A:\n  the cat sees the hen\n\nB:\n  the hen sees the cat\n\n"
    (directory / "train.txt.gz").write_bytes(gzip.compress((text * 40).encode()))
    (directory / "dev.txt").write_text(text * 3 + "é!")
    return lines.with_options(
        train=(str(directory / "train.txt.gz"),),
        dev=(str(directory / "dev.txt"),),
        documents="packed",
        tokenizer_algorithm="character",
        vocab_size=260,
        examples=("A:\n  the",),
        metrics=("perplexity", "bits_per_character", "bits_per_byte"),
        max_length=17,
    )


@pytest.fixture(scope="session")
def recipes(labelled, tagged, lines, masked_lines, packed) -> dict[str, Recipe]:  # noqa: F811
    return {"labelled": labelled, "tagged": tagged, "lines": lines, "masked": masked_lines, "packed": packed}


@pytest.fixture(scope="session")
def trained(recipes, tmp_path_factory):
    """Returns the directory of the model of a recipe."""
    models: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in models:
            output = tmp_path_factory.mktemp("models") / kind
            with redirect_stdout(None):
                models[kind] = train(recipes[kind].with_options(output=str(output))).directory
        return models[kind]

    return of
