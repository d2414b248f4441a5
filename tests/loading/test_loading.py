"""Model directories that cannot be loaded, and what is said of them."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from refusals import refused
from safetensors.torch import load_file, save_file
from small_models import random_model, save

from vanilla_transformer.errors import ModelError
from vanilla_transformer.export.conversion import convert
from vanilla_transformer.graph.session import Session
from vanilla_transformer.loading.models import load_config, load_model
from vanilla_transformer.loading.tokenizers import load_own_tokenizer, load_tokenizer
from vanilla_transformer.tokenizer import train_tokenizer
from vanilla_transformer.translation import Translator


@pytest.fixture
def directory(tmp_path):
    """A model and a tokenizer that fit."""
    tokenizer = train_tokenizer(["one two three"] * 9, vocab_size=264)
    save(random_model("translator", vocab_size=264), tokenizer, tmp_path)
    return tmp_path


def set_in(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("name", "harm", "load"),
    [
        ("config.json", lambda file: set_in(file, model_type="other"), load_config),
        ("generation_config.json", lambda file: file.write_bytes(b"\xff"), load_model),
        ("model.safetensors", lambda file: file.write_bytes(b"no weights"), load_model),
        ("tokenizer.json", lambda file: set_in(file, decoder=3), load_own_tokenizer),
    ],
)
def test_a_damaged_file_is_told_in_one_sentence_with_the_directory(directory, name, harm, load):
    load(directory)
    harm(directory / name)
    with refused(ModelError, directory):
        load(directory)


@pytest.mark.parametrize("name", ["vocab.txt", "words"])
def test_a_vocabulary_is_a_file_of_any_of_the_librarys_classes(tmp_path, name):
    (tmp_path / name).write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    with refused(ModelError, tmp_path, "vocabulary") if name == "words" else nullcontext():
        assert load_tokenizer(tmp_path)("a")["input_ids"] == [2, 5, 3]


def test_nobody_is_asked_whether_to_run_code_of_a_model(directory, tmp_path, standard_input):
    standard_input(b"y\n")
    (directory / "other.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    set_in(directory / "config.json", model_type="other", auto_map={"AutoConfig": "other.Config"})
    with refused(ModelError, "cannot be loaded"):
        load_model(directory)
    assert not (tmp_path / "ran").exists()


def with_weights(directory, change):
    file = directory / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


def as_pickle(directory, change=lambda weights: None):
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    change(weights)
    torch.save(weights, directory / "pytorch_model.bin")


NORM = "model.encoder.layers.1.feed_forward_norm.weight"
OTHER_WEIGHTS = [
    (lambda path: with_weights(path, lambda weights: weights.pop(NORM)), f"{NORM} missing"),
    (lambda path: with_weights(path, lambda weights: weights.update(more=torch.ones(1))), "more left over"),
    (lambda path: set_in(path / "config.json", tie_word_embeddings=False), "lm_head.weight others missing"),
    (lambda path: set_in(path / "config.json", _attn_implementation="a/b"), "config.json a/b"),
    (lambda path: set_in(path / "config.json", pad_token_id=264), "pad_token_id 264 config.json"),
]


@pytest.mark.parametrize(("harm", "named"), OTHER_WEIGHTS)
@pytest.mark.parametrize("load", [load_model, load_config, convert])
def test_weights_that_are_not_those_of_the_configuration_are_refused(directory, harm, named, load):
    """None is made up in silence, and what has no place is not forgotten."""
    harm(directory)
    with refused(ModelError, directory, *named.split()):
        load(directory)


def test_a_configuration_without_weights_is_one(directory, monkeypatch):
    monkeypatch.setenv("HOME", str(directory.parent))
    for load in (load_model, load_config, load_tokenizer, load_own_tokenizer):
        load(f"~/{directory.name}")
    (directory / "model.safetensors").unlink()
    assert load_config(directory).d_model
    with refused(ModelError, directory, "model.safetensors"):
        load_model(directory)


def test_weights_in_pieces_are_compared_with_the_configuration_too(directory):
    model, _ = load_model(directory)
    (directory / "model.safetensors").unlink()
    model.save_pretrained(directory, max_shard_size="20KB")
    assert len(list(directory.glob("model-*.safetensors"))) > 1
    load_model(directory)
    next(directory.glob("model-00002*")).unlink()
    for load in (load_model, load_config):
        with refused(ModelError, "model-00002-of-"):
            load(directory)
    for file in directory.glob("model-*.safetensors"):
        file.unlink()
    with refused(ModelError, "model-00001-of-"):
        load_config(directory)


@pytest.mark.parametrize("load", [load_model, load_config])
def test_a_pickle_is_read_with_the_same_care_and_its_code_not_run(directory, tmp_path_factory, load):
    lacking, running = (tmp_path_factory.mktemp("twin") / "model" for _ in range(2))
    for twin in (lacking, running):
        shutil.copytree(directory, twin)
    as_pickle(directory)
    load(directory)
    as_pickle(lacking, lambda weights: weights.pop(NORM))
    with refused(ModelError, NORM, "missing"):
        load(lacking)
    as_pickle(running, lambda weights: weights.update(code=Path))
    with refused(ModelError, "pytorch_model.bin") as e:
        load(running)
    assert "weights_only" not in str(e.value)


def test_weights_that_are_no_numbers_are_refused(directory):
    with_weights(directory, lambda weights: weights[NORM].fill_(float("-inf")))
    for load in (load_model, load_config):
        with refused(ModelError, NORM, "NaN"):
            load(directory)


@pytest.mark.parametrize("name", ["../nosuch", "models/nosuch", "nosuch"])
def test_a_mistyped_name_of_a_directory_is_not_looked_for_on_the_hub(tmp_path, monkeypatch, unreachable_hub, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for load in (load_model, load_config, load_tokenizer):
        with refused(ModelError, name, *["directory models"] * name.startswith("models")) as caught:
            load(name)
        assert unreachable_hub not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"eos_token_id": 10**6}, "eos_token_id"),
        ({"num_beams": 100_000}, "num_beams 100000"),
        ({"length_penalty": 1e9}, "length_penalty 1000000000.0"),
        ({"max_length_beyond_source": None}, "length"),
    ],
)
def test_a_search_that_cannot_begin_or_end_is_refused(directory, settings, named):
    set_in(directory / "generation_config.json", **settings)
    with refused(ModelError, directory, "generation_config.json", *named.split()):
        load_model(directory)


def test_a_hub_that_does_not_answer_is_asked_once_and_its_cache_is_used(
    directory, tmp_path_factory, monkeypatch, unreachable_hub
):
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.chdir(cache)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    shutil.copytree(directory, cache / "models--models--there" / "snapshots" / "abc")
    (cache / "models--models--there" / "refs").mkdir()
    (cache / "models--models--there" / "refs" / "main").write_text("abc")
    (cache / "models--models--there" / "refs" / "v2").write_text("abc")
    for offline, reason in ((False, "refused"), (True, "HF_HUB_OFFLINE=0")):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        assert isinstance(Translator("models/there", device="cpu").search, Session)
        for load in (Translator, load_model, load_config, load_tokenizer, load_own_tokenizer):
            load("models/there")
            load("models/there@v2")
            for missing in ("models/nosuch", "models/there@v3"):
                with refused(ModelError, missing, reason):
                    load(missing)
