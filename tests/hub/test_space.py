"""Spaces: made, replaced whole, and never in the place of somebody else's."""

from pathlib import Path

import pytest
from hub_server import HubServer, Repository

from vanilla_transformer.hub import PushError, push_space


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "space"
    (folder / "package").mkdir(parents=True)
    (folder / "README.md").write_text("---\ntitle: A page\nsdk: static\ntags: [vanilla_transformer]\n---\n\nWords.\n")
    (folder / "index.html").write_text("<p>one")
    (folder / "package" / "old.py").write_text("")
    return folder


def test_a_space_is_made_and_then_has_the_files_of_the_folder_and_no_others(ann: HubServer, folder: Path):
    assert push_space(folder, "ann/page", message="first") == f"{ann.url}/spaces/ann/page"
    repository = ann.repositories["spaces/ann/page"]
    assert (repository.sdk, repository.private, repository.messages[-1]) == ("static", False, "first")
    assert set(repository.files()) - {".gitattributes"} == {"README.md", "index.html", "package/old.py"}
    (folder / "package" / "old.py").rename(folder / "package" / "new.py")
    (folder / "index.html").write_text("<p>two")
    assert push_space(folder, "page") == f"{ann.url}/spaces/ann/page"
    assert set(repository.files()) - {".gitattributes"} == {"README.md", "index.html", "package/new.py"}
    assert repository.files()["index.html"] == b"<p>two"
    assert "ann/page" not in ann.repositories


def test_a_private_space_is_private_and_a_public_one_is_not_taken_for_it(ann: HubServer, folder: Path):
    push_space(folder, "ann/page", private=True)
    assert ann.repositories["spaces/ann/page"].private
    push_space(folder, "ann/open")
    with pytest.raises(PushError, match="spaces/ann/open already exists on the Hub and is public"):
        push_space(folder, "ann/open", private=True)


@pytest.mark.parametrize(
    ("sdk", "card"),
    [("static", "---\nsdk: static\n---\n"), ("gradio", "---\nsdk: gradio\ntags: [vanilla_transformer]\n---\n")],
)
def test_a_space_that_somebody_else_made_is_kept(ann: HubServer, folder: Path, sdk: str, card: str):
    there = ann.repositories["spaces/ann/page"] = Repository(sdk=sdk)
    there.commit("main", {"README.md": card.encode(), "mine.txt": b"1"}, "mine")
    with pytest.raises(PushError, match="spaces/ann/page is already taken on the Hub by a Space that this command"):
        push_space(folder, "ann/page")
    assert there.messages == ["mine"]


def test_what_the_hub_refuses_is_said_in_a_sentence(ann: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(PushError, match="The token has no write access to spaces/bob/page"):
        push_space(folder, "bob/page")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PushError, match="No Hub token found"):
        push_space(folder, "ann/page")
