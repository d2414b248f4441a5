"""Spaces: made, replaced whole, and never instead of somebody else's; and the page of a model in one."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from browser import free_port
from hub_server import HubServer, Repository, card_head
from refusals import refused

from vanilla_transformer.cli import main
from vanilla_transformer.demo import GRADIO
from vanilla_transformer.errors import PushError
from vanilla_transformer.hub import push_space

ROOT = Path(__file__).parents[2]
# As on a machine that has what requirements.txt names, and not this package.
WITHOUT_THE_PACKAGE = """
import importlib.metadata, os, runpy
known = importlib.metadata.Distribution.from_name
def from_name(name):
    if name.replace("_", "-") == "vanilla-transformer":
        raise importlib.metadata.PackageNotFoundError(name)
    return known(name)
importlib.metadata.Distribution.from_name = from_name
import vanilla_transformer
assert os.path.dirname(vanilla_transformer.__file__) == os.path.join(os.getcwd(), "vanilla_transformer")
runpy.run_path("app.py", run_name="__main__")
"""


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "tiny-en-de"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "space"
    (folder / "package").mkdir(parents=True)
    (folder / "README.md").write_text("---\ntitle: A page\nsdk: static\ntags: [vanilla_transformer]\n---\n\nWords.\n")
    (folder / "index.html").write_text("<p>one")
    (folder / "package" / "old.py").write_text("")
    return folder


def test_new_space_has_exactly_the_files_of_the_folder(ann: HubServer, folder: Path):
    assert push_space(folder, "ann/page", message="first") == f"{ann.url}/spaces/ann/page"
    repository = ann.repositories["spaces/ann/page"]
    assert (repository.sdk, repository.private, repository.messages[-1][:5]) == ("static", False, "first")
    assert set(repository.files()) - {".gitattributes"} == {"README.md", "index.html", "package/old.py"}
    (folder / "package" / "old.py").rename(folder / "package" / "new.py")
    (folder / "index.html").write_text("<p>two")
    assert push_space(folder, "page") == f"{ann.url}/spaces/ann/page"
    assert set(repository.files()) - {".gitattributes"} == {"README.md", "index.html", "package/new.py"}
    assert repository.files()["index.html"] == b"<p>two"
    assert "ann/page" not in ann.repositories


@pytest.mark.parametrize(
    ("sdk", "card", "reason"),
    [
        ("static", "---\nsdk: static\n---\n", "a Space that this command did not make"),
        ("gradio", "---\nsdk: gradio\ntags: [vanilla_transformer]\n---\n", "a gradio Space"),
    ],
)
def test_a_space_of_somebody_else_or_of_another_kind_is_kept(
    ann: HubServer, folder: Path, sdk: str, card: str, reason: str
):
    there = ann.repositories["spaces/ann/page"] = Repository(sdk=sdk)
    there.commit("main", {"README.md": card.encode(), "mine.txt": b"1"}, "mine")
    with refused(PushError, "ann/page", reason):
        push_space(folder, "ann/page")
    assert there.messages == ["mine"]


def test_a_model_is_pushed_with_a_space_that_shows_it(ann: HubServer, model: Path, capsys):
    assert main(["push", str(model), "tiny", "--space", "--message", "both"]) == 0
    assert capsys.readouterr().out.split() == [f"{ann.url}/ann/tiny", f"{ann.url}/spaces/ann/tiny"]
    repository = ann.repositories["spaces/ann/tiny"]
    assert (repository.sdk, repository.private, repository.messages[-1][:4]) == ("gradio", False, "both")
    files = repository.files()
    head = card_head(files["README.md"].decode())
    assert (head["sdk_version"], head["app_file"], head["models"]) == (GRADIO, "app.py", ["ann/tiny"])
    assert head["python_version"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    package = ROOT / "vanilla_transformer"
    sources = {str(path.relative_to(ROOT)) for path in package.rglob("*") if path.is_file()}
    sources = {name for name in sources if "__pycache__" not in name}
    assert set(files) - {".gitattributes"} == {"README.md", "app.py", "requirements.txt"} | sources
    for line in files["requirements.txt"].decode().splitlines():
        name, _, pinned = line.partition("==")
        assert pinned == (GRADIO if name == "gradio" else version(name).partition("+")[0])
    # Nothing of this machine.
    for name in ("README.md", "app.py", "requirements.txt"):
        assert str(model.parent).encode() not in files[name] and b"file://" not in files[name]


def test_a_model_is_pushed_with_a_page_on_which_it_computes(ann: HubServer, model: Path, capsys):
    (model / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    assert main(["push", str(model), "tiny", "--explore"]) == 0
    assert capsys.readouterr().out.split() == [f"{ann.url}/ann/tiny", f"{ann.url}/spaces/ann/tiny-explore"]
    files = ann.repositories["spaces/ann/tiny-explore"].files()
    assert {"index.html", "app.js", "vendor/d3.min.js", "model/weights.bin", "model/model.json"} <= set(files)
    assert b"connect-src 'self' https://*.hf.co" in files["index.html"]
    head = card_head(files["README.md"].decode())
    assert (head["sdk"], head["models"], head["license"]) == ("static", ["ann/tiny"], "cc-by-4.0")


def test_the_app_of_a_space_runs_where_the_package_is_not_installed(
    ann: HubServer, model: Path, tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")  # Of the client.
    client = pytest.importorskip("gradio_client", reason="gradio is not installed: pip install '.[demo]'")
    pytest.importorskip("gradio", reason="gradio is not installed: pip install '.[demo]'")
    assert main(["push", str(model), "ann/tiny", "--space"]) == 0
    here = tmp_path / "space"
    for name, content in ann.repositories["spaces/ann/tiny"].files().items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content)
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_TOKEN")}
    environment |= {"HF_ENDPOINT": ann.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    environment |= {"GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_SERVER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE]
    with open(tmp_path / "log", "w") as log:
        app = subprocess.Popen(command, cwd=here, env=environment, stdout=log, stderr=log)
    try:
        for _ in range(1200):
            assert app.poll() is None, (tmp_path / "log").read_text()
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.25)
        asking = client.Client(f"http://127.0.0.1:{port}", verbose=False)
        assert isinstance(asking.predict("the cat", 1, api_name="/translate"), str)
    finally:
        app.send_signal(signal.SIGTERM)
        app.wait(120)
