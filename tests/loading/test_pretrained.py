"""An OPUS-MT model, as downloaded, is a model of this package wherever one is named."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from opus_models import ENGLISH, GERMAN, write_opus
from safetensors.torch import load_file
from transformers import GenerationMixin, MarianMTModel, MarianTokenizer

from vanilla_transformer import Translator, VanillaTransformerForConditionalGeneration, evaluate
from vanilla_transformer.cli import main
from vanilla_transformer.loading.models import load_model
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.run import train

KINDS = {"two": {"separate": True}, "languages": {"languages": (">>deu<<", ">>nld<<")}}
LINES = ["the dog sat", "two cats walk in the park", "ein Hund?", "  spaces   and ﬁne ligatures ", "unknown 漢字"]


@pytest.fixture(scope="module", params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def opus(kind, tmp_path_factory) -> Path:
    return write_opus(tmp_path_factory.mktemp("opus"), **KINDS[kind])


@pytest.fixture(scope="module")
def pairs(kind, tmp_path_factory) -> tuple[str, str]:
    directory = tmp_path_factory.mktemp("pairs")
    before = ">>deu<< " if kind == "languages" else ""
    for name, lines in (("en", [before + line for line in ENGLISH]), ("de", GERMAN)):
        (directory / name).write_text("".join(f"{line}\n" for line in lines[:8]))
    return str(directory / "en"), str(directory / "de")


@pytest.fixture(scope="module")
def recipe(opus, pairs, tmp_path_factory) -> Recipe:
    return Recipe.of(
        from_model=str(opus),
        train=pairs,
        dev=pairs,
        max_steps=6,
        eval_steps=2,
        save_steps=3,
        learning_rate=1e-3,
        metrics=(),
        output=str(tmp_path_factory.mktemp("tuned") / "tuned"),
    )


@pytest.fixture(scope="module")
def tuned(recipe) -> Path:
    return train(recipe).directory


def of_marian(opus: Path, lines: list[str]) -> list[str]:
    """The translations of transformers' own model, search and tokenizer, line by line."""
    tokenizer, model = MarianTokenizer.from_pretrained(opus), MarianMTModel.from_pretrained(opus).eval()
    found = [model.generate(**tokenizer([line], return_tensors="pt")) for line in lines]
    return [tokenizer.decode(ids[0], skip_special_tokens=True) for ids in found]


def test_translate_gives_the_text_of_marian_by_the_graph_alone(kind, opus, tmp_path, monkeypatch, capsys):
    lines = [">>deu<< " + line for line in LINES] if kind == "languages" else LINES
    expected = of_marian(opus, lines)
    assert len({*expected}) > 1
    monkeypatch.setattr(GenerationMixin, "_beam_search", None)
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines))
    words = ["translate", opus, tmp_path / "in", "--output", tmp_path / "out", "--precision", "float32"]
    assert main([*map(str, words)]) == 0
    assert (tmp_path / "out").read_text().splitlines() == expected


@pytest.mark.parametrize("kind", ["two"], indirect=True)
def test_without_a_limit_a_translation_may_have_all_positions(opus, tmp_path):
    model = MarianMTModel.from_pretrained(opus)
    model.generation_config.max_length = None
    model.save_pretrained(tmp_path)
    MarianTokenizer.from_pretrained(opus).save_pretrained(tmp_path)
    assert load_model(tmp_path)[0].generation_config.max_length == 64


def test_a_run_from_it_keeps_tokenizer_and_search_and_learns(opus, tuned, pairs):
    model, tokenizer = load_model(tuned)
    assert isinstance(tokenizer, MarianTokenizer) and isinstance(model, VanillaTransformerForConditionalGeneration)
    theirs = MarianTokenizer.from_pretrained(opus)
    assert tokenizer(ENGLISH[:4], text_target=GERMAN[:4]) == theirs(ENGLISH[:4], text_target=GERMAN[:4])
    settings = load_model(opus)[0].generation_config
    for name in ("bad_words_ids", "forced_eos_token_id", "max_length", "renormalize_logits", "length_penalty_type"):
        assert getattr(model.generation_config, name) == getattr(settings, name), name
    records = map(json.loads, (tuned / "metrics.jsonl").read_text().splitlines())
    losses = [record["dev_loss"] for record in records if "dev_loss" in record]
    assert len(losses) == 4 and losses[-1] < losses[0]
    assert len(list(Translator(model, tokenizer)(LINES))) == len(LINES)
    assert evaluate(str(tuned), pairs, metrics=("chrf",)).scores


@pytest.mark.parametrize("kind", ["two"], indirect=True)
def test_a_killed_run_from_it_resumes_exactly(recipe, tuned, tmp_path, train_until):
    expected = load_file(tuned / "model.safetensors")
    mine = recipe.with_options(output=str(tmp_path / "killed"))
    train_until(mine, 5)
    found = load_file(train(mine) / "model.safetensors")
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("kind", ["two"], indirect=True)
def test_a_run_that_makes_it_worse_returns_it_unchanged(opus, recipe, tmp_path):
    worse = train(recipe.with_options(learning_rate=3.0, max_grad_norm=1.0, output=str(tmp_path / "worse")))
    start, end = (load_model(path)[0].state_dict() for path in (opus, worse))
    assert all(torch.equal(end[name], weight) for name, weight in start.items())


@pytest.mark.parametrize("kind", ["two"], indirect=True)
def test_other_commands_take_it(opus, pairs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", str(opus), "--data", *pairs, "--metrics", "chrf"]) == 0
    assert main(["attend", str(opus), ENGLISH[0]]) == 0
    chosen = shutil.copytree(opus, tmp_path / "chosen")
    assert main(["align", str(chosen), *pairs, "--choose-heads"]) == main(["align", str(chosen), *pairs]) == 0
    assert main(["export", str(opus), "--to", "ctranslate2"]) == 0
    assert main(["export", str(opus), "--to", "onnx"]) == 0
    assert {f"{opus.name}-{name}" for name in ("ctranslate2", "onnx")} < {path.name for path in tmp_path.iterdir()}
