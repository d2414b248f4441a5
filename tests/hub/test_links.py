"""Links out of a folder, which no command sends."""

import os
import shutil
from pathlib import Path

import pytest
from hub_server import HubServer
from refusals import refused

from vanilla_transformer.cli import main
from vanilla_transformer.hub import push_space

SECRET = "---\nlicense: mit\n---\nThe password is swordfish.\n"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "elsewhere" / "secret"
    file.parent.mkdir()
    file.write_text(SECRET)
    return file


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.mark.parametrize(("name", "options"), [("README.md", []), ("recipe.yaml", ["--space"])])
def test_push_sends_no_file_of_another_folder(
    ann: HubServer, model: Path, secret: Path, name: str, options: list[str], capsys
):
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(os.path.relpath(secret, model))
    assert main(["push", str(model), "ann/tiny", *options]) == 1
    assert f"{model / name} is a link to {secret}" in capsys.readouterr().err
    assert not ann.repositories and secret.read_text() == SECRET


def test_links_within_a_folder_and_to_the_blobs_of_its_snapshot_are_sent(
    ann: HubServer, model: Path, tmp_path: Path, secret: Path
):
    (model / "weights").mkdir()
    (model / "model.safetensors").rename(model / "weights" / "final")
    (model / "model.safetensors").symlink_to("weights/final")
    (tmp_path / "by-another-name").symlink_to(model)
    assert main(["push", str(tmp_path / "by-another-name"), "ann/tiny"]) == 0

    cache = tmp_path / "models--ann--tiny"
    snapshot = Path(shutil.copytree(model, cache / "snapshots" / "abc"))
    (cache / "blobs").mkdir()
    shutil.move(snapshot / "config.json", cache / "blobs" / "123")
    (snapshot / "config.json").symlink_to("../../blobs/123")
    assert main(["push", str(snapshot), "ann/again"]) == 0
    first, again = (ann.repositories[f"ann/{name}"].files() for name in ("tiny", "again"))
    assert first["model.safetensors"] == again["model.safetensors"] and first["config.json"] == again["config.json"]


def test_a_page_with_a_link_out_of_its_folder_is_not_sent(ann: HubServer, tmp_path: Path, secret: Path):
    page = tmp_path / "page"
    (page / "model").mkdir(parents=True)
    (page / "model" / "notes").symlink_to(secret)
    with refused(OSError, "notes", str(secret)):
        push_space(page, "ann/page")
    assert not ann.repositories
