import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from hub_server import HubServer, Repository, card_problems
from huggingface_hub import ModelCard
from small_models import random_model, save, small_recipe, write_summary
from transformers import AutoTokenizer

from vanilla_transformer import RecurrentEncoderDecoderConfig, RecurrentEncoderDecoderForConditionalGeneration
from vanilla_transformer.cli import main
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.run import train

CODE = {f"{name}_vanilla_transformer.py" for name in ("configuration", "generation", "modeling", "pipeline")}
MODEL = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "translate.onnx",
    "chat_template.jinja",
    "additional_chat_templates/tools.jinja",
} | CODE


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    """A finished run: a model, and beside it what concerns nobody else."""
    directory = Path(shutil.copytree(saved, tmp_path / "tiny-en-de"))
    for name in (
        *("recipe.yaml", "learning_curves.png", "train.log", "metrics.jsonl", ".lock", "optimizer.pt", "notes.py"),
        *(name for name in MODEL if name.endswith(".jinja")),
        *("checkpoints/step-5/model.safetensors", "prepared/train/config.json", "trackers/tokenizer.json"),
    ):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("")
    write_summary(directory)
    (directory / "recipe.yaml").write_text("seed: 1\n")
    return directory


def push(directory: Path, name: str, *options: str) -> int:
    return main(["push", str(directory), name, *options])


def complaint(capsys) -> str:
    """Returns the command's error, which must be one line and all that it prints."""
    output, errors = capsys.readouterr()
    assert output == ""
    (line,) = errors.splitlines()
    return line


def test_push_uploads_the_files_of_the_model_a_card_and_no_others(ann: HubServer, directory: Path, capsys):
    assert push(directory, "ann/tiny") == 0
    assert capsys.readouterr().out == f"{ann.url}/ann/tiny\n"
    repository = ann.repositories["ann/tiny"]
    assert repository.messages == ["initial commit", f"Push {directory.name} with vanilla_transformer"]
    assert set(repository.files()) - {".gitattributes"} == MODEL | {"README.md", "recipe.yaml", "learning_curves.png"}
    for name in MODEL:
        assert repository.files()[name] == (directory / name).read_bytes()
    card = repository.files()["README.md"].decode()
    assert card_problems(card) == []
    assert 'pipeline("translation", model="ann/tiny", trust_remote_code=True)' in card


def test_an_empty_name_of_a_branch_is_rejected(ann: HubServer, directory: Path, capsys):
    assert main(["push", str(directory), "ann/x", "--revision", ""]) == 1
    assert "--revision" in capsys.readouterr().err


def test_a_push_to_a_branch_makes_it_and_leaves_the_main_one_alone(ann: HubServer, directory: Path, capsys):
    assert push(directory, "ann/tiny") == 0
    repository = ann.repositories["ann/tiny"]
    before, url = repository.files(), f"{ann.url}/ann/tiny/tree/trial"
    (directory / "learning_curves.png").write_bytes(b"others")
    capsys.readouterr()
    for _ in range(2):
        assert push(directory, "ann/tiny", "--revision", "trial") == 0
        assert capsys.readouterr().out == f"{url}\n"
    assert repository.files() == before
    assert repository.files("trial") == before | {"learning_curves.png": b"others"}


def test_files_of_an_earlier_push_that_the_directory_no_longer_has_go_and_those_of_others_stay(
    ann: HubServer, directory: Path
):
    assert push(directory, "ann/tiny") == 0
    repository = ann.repositories["ann/tiny"]
    repository.commit("main", repository.files() | {"vocab.json": b"{}", "notes.py": b"", "README.md": b"by hand"}, "")
    for name in ("chat_template.jinja", "recipe.yaml", "README.md"):
        (directory / name).unlink()
    before = repository.files()
    assert push(directory, "ann/tiny") == 0
    assert before.keys() - repository.files().keys() == {"chat_template.jinja", "recipe.yaml", "vocab.json"}
    assert repository.files()["README.md"] == b"by hand"


def test_nothing_is_made_on_the_hub_for_a_directory_whose_recipe_cannot_be_read(
    ann: HubServer, directory: Path, capsys
):
    (directory / "recipe.yaml").write_text("seed: one\n")
    assert push(directory, "ann/tiny") == 2 and "recipe.yaml" in complaint(capsys)
    assert not ann.repositories


def test_a_private_push_makes_a_private_place_and_takes_no_public_one(ann: HubServer, directory: Path, capsys):
    assert push(directory, "ann/secret", "--private") == 0 and ann.repositories["ann/secret"].private
    assert push(directory, "ann/open") == 0 and not ann.repositories["ann/open"].private
    capsys.readouterr()
    before = list(ann.repositories["ann/open"].messages)
    assert push(directory, "ann/open", "--private") == 1 and "public" in complaint(capsys)
    assert ann.repositories["ann/open"].messages == before


def test_a_run_is_pushed_without_the_places_on_this_machine(ann: HubServer, tmp_path: Path):
    run = train(small_recipe(tmp_path, output=str(tmp_path / "numbers")))
    kept = (run / "recipe.yaml").read_bytes()
    assert str(tmp_path).encode() in kept
    assert push(run, "ann/numbers") == 0
    files = ann.repositories["ann/numbers"].files()
    for name, content in files.items():
        assert str(tmp_path).encode() not in content, name
    (tmp_path / "pushed.yaml").write_bytes(files["recipe.yaml"])
    assert load_recipe(tmp_path / "pushed.yaml").data.train == Recipe.of(train=("train.en", "train.de")).data.train
    assert (run / "recipe.yaml").read_bytes() == kept


@pytest.mark.parametrize(("kind", "task"), [("language-model", "text-generation"), ("tagger", "token-classification")])
def test_models_of_one_stack_are_pushed_with_the_name_of_their_pipeline(
    ann: HubServer, saved: Path, tmp_path: Path, kind: str, task: str
):
    directory, model = tmp_path / "model", random_model(kind, vocab_size=280)
    save(model, AutoTokenizer.from_pretrained(saved), directory)
    assert push(directory, "ann/one-stack") == 0
    files = ann.repositories["ann/one-stack"].files()
    card = files["README.md"].decode()
    assert ModelCard(card).data.pipeline_tag == task and f'pipeline("{task}", model="ann/one-stack")' in card
    assert "translat" not in card and card_problems(card) == []
    assert {"model.safetensors", *CODE} <= set(files)
    with torch.no_grad():
        model.model.layers[0].feed_forward.w_1.weight[0, 0] = torch.nan
    model.save_pretrained(directory)
    assert push(directory, "ann/one-stack") == 1


def test_code_that_another_version_saved_is_replaced_by_the_current_one(ann: HubServer, directory: Path, capsys):
    modeling = directory / "modeling_vanilla_transformer.py"
    current = modeling.read_bytes()
    modeling.write_text("from .generation_vanilla_transformer import PaperGenerationMixin\n")
    (directory / "pipeline_vanilla_transformer.py").unlink()  # The code of that version did not import it.
    assert push(directory, "ann/tiny") == 0
    assert "differs from this version's code, which is uploaded instead" in capsys.readouterr().err
    files = ann.repositories["ann/tiny"].files()
    assert files[modeling.name] == current and set(files) >= CODE
    assert push(directory, "ann/tiny") == 0


def test_a_recurrent_model_is_pushed_with_its_own_code_and_what_that_imports(ann: HubServer, saved, tmp_path):
    config = RecurrentEncoderDecoderConfig(vocab_size=280, d_model=16)
    directory = tmp_path / "recurrent"
    save(RecurrentEncoderDecoderForConditionalGeneration(config), AutoTokenizer.from_pretrained(saved), directory)
    expected = {file.name: file.read_bytes() for file in directory.glob("*.py")}
    assert {"modeling_recurrent_encoder_decoder.py", "recurrent_equations.py", *CODE} <= set(expected)
    for name in expected:
        (directory / name).write_text("old = True\n")
    assert push(directory, "ann/recurrent") == 0
    files = ann.repositories["ann/recurrent"].files()
    assert {name: content for name, content in files.items() if name.endswith(".py")} == expected


def test_a_second_push_completes_one_that_lost_the_connection(ann: HubServer, directory: Path, capsys):
    with ann.losing("/commit/"):
        assert push(directory, "ann/tiny") == 1
    assert re.fullmatch(r"vanilla-transformer: error: The connection was lost .* again .*\.", complaint(capsys))
    assert push(directory, "ann/tiny") == 0
    assert set(ann.repositories["ann/tiny"].files()) >= MODEL | {"README.md"}


def test_no_token_is_said_before_anything_is_asked(ann: HubServer, directory: Path, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    assert push(directory, "ann/tiny") == 1
    assert "`hf auth login`" in complaint(capsys)
    assert ann.requests == []


@pytest.mark.parametrize(("owner", "config", "words"), [("bob", None, "bob/tiny"), ("ann", "bert", "a bert model")])
def test_a_name_that_is_taken_is_said_and_left_alone(ann: HubServer, directory: Path, capsys, owner, config, words):
    repository, there = Repository(), (directory / "config.json").read_bytes()
    repository.commit(
        "main", {"config.json": json.dumps({"model_type": config}).encode() if config else there}, "theirs"
    )
    ann.repositories[f"{owner}/tiny"] = repository
    assert push(directory, f"{owner}/tiny") == 1
    assert words in complaint(capsys)
    assert set(repository.files()) == {"config.json"} and len(repository.commits) == 1


def test_edits_of_a_card_here_and_on_the_hub_stay(ann: HubServer, directory: Path, capsys):
    assert push(directory, "ann/tiny") == 0
    written = (directory / "README.md").read_text()
    edited = written.replace("## Limits", "## What it cannot do")
    (directory / "README.md").write_text(edited)
    assert push(directory, "ann/other") == 0
    assert ann.repositories["ann/other"].files()["README.md"].decode() == edited

    repository = ann.repositories["ann/tiny"]
    repository.commit("main", repository.files() | {"README.md": b"---\ntags: []\n---\nEdited there.\n"}, "by hand")
    capsys.readouterr()
    assert push(directory, "ann/tiny") == 0
    assert "written or edited by others and is kept" in capsys.readouterr().err
    assert repository.files()["README.md"].endswith(b"Edited there.\n")
