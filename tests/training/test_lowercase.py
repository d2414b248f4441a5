"""Recipes whose tokenizer lower-cases what the model reads."""

import pytest
from refusals import refused

from vanilla_transformer.errors import RunError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.loop import train
from vanilla_transformer.translation import load_model, translate_lines

WORDS = {"hello": "HH AH L OW", "world": "W ER L D", "a": "AH", "cat": "K AE T"}
SIZES = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 270}


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "words.tsv").write_text("".join(f"{word}\t{sounds}\n" for word, sounds in WORDS.items()))
    words = (str(tmp_path / "words.tsv"),)
    return Recipe.of(train=words, output=str(tmp_path / "model"), tokenizer_lowercase=True, max_steps=2, **SIZES)


def test_a_word_is_read_alike_in_any_case_and_targets_keep_theirs(recipe, tmp_path):
    run = train(recipe)
    model, tokenizer = load_model(run)
    first, second, third = translate_lines(model, tokenizer, ["hello", "Hello", "HELLO"])
    assert first.source_ids == second.source_ids == third.source_ids and first.text == third.text
    # Text that is lower-cased already, or not at all, teaches the same, to the last bit.
    (tmp_path / "upper.tsv").write_text("".join(f"{word.upper()}\t{sounds}\n" for word, sounds in WORDS.items()))
    for changes in ({"tokenizer_lowercase": False}, {"train": (str(tmp_path / "upper.tsv"),)}):
        other = train(recipe, output=str(tmp_path / "-".join(changes)), **changes)
        assert (run / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    with refused(RunError, "tokenizer_lowercase"):
        train(recipe, tokenizer_lowercase=False, max_steps=3)
