"""Model directories that cannot be loaded, and what is said of them."""

import json

import pytest

from vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.translation.loading import (
    UnusableModelError,
    load_config,
    load_model,
    load_own_tokenizer,
    load_tokenizer,
)


@pytest.fixture
def directory(tiny_model, tmp_path):
    """A model and a tokenizer that fit."""
    tokenizer = VanillaTransformerTokenizer.train(["one two three"] * 9, vocab_size=264)
    tiny_model.resize_token_embeddings(264)
    tiny_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def set_in(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("name", "harm", "load"),
    [
        ("config.json", lambda file: file.write_text("{"), load_model),
        ("config.json", lambda file: file.write_text("{"), load_config),
        ("config.json", lambda file: set_in(file, num_heads=[]), load_model),
        ("config.json", lambda file: set_in(file, model_type="other"), load_config),
        ("generation_config.json", lambda file: file.write_bytes(b"\xff"), load_model),
        ("model.safetensors", lambda file: file.write_bytes(b"no weights"), load_model),
        ("tokenizer.json", lambda file: file.write_text("{"), load_model),
        ("tokenizer.json", lambda file: set_in(file, truncation="none"), load_tokenizer),
        ("tokenizer.json", lambda file: set_in(file, truncation="none"), load_own_tokenizer),
        ("tokenizer.json", lambda file: set_in(file, decoder=3), load_own_tokenizer),
        ("tokenizer_config.json", lambda file: file.write_text('"text"'), load_tokenizer),
    ],
)
def test_a_damaged_file_is_told_in_one_sentence_with_the_directory(directory, name, harm, load):
    load(directory)
    harm(directory / name)
    with pytest.raises(UnusableModelError, match=rf"^What is in {directory} cannot be loaded.*\.$") as caught:
        load(directory)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_panics_when_it_is_used_is_told(directory):
    """The library raises what is no Exception for a template that names a token which it does not have."""
    file = directory / "tokenizer.json"
    document = json.loads(file.read_text())
    assert document["post_processor"]["special_tokens"]
    document["post_processor"]["special_tokens"] = {}
    file.write_text(json.dumps(document))
    with pytest.raises(UnusableModelError, match="cannot be loaded"):
        load_own_tokenizer(directory)


def test_nobody_is_asked_whether_to_run_code_of_a_model(directory, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    set_in(directory / "config.json", model_type="other", auto_map={"AutoConfig": "other.Config"})
    with pytest.raises(UnusableModelError, match="cannot be loaded"):
        load_model(directory)
