"""A Hub on this machine, and a small model to push to it."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.utils._http as hub_http
import pytest
import transformers.utils.hub
from hub_server import HubServer
from huggingface_hub import constants, hf_api
from small_models import save_translator


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def ann(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """The Hub, as this process sees it with the token of ann."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    # Made once by each library, with the address of that moment.
    monkeypatch.setattr(hf_api.api, "endpoint", hub.url)
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    # Nobody waits between two attempts.
    monkeypatch.setattr(hub_http, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setenv("HF_TOKEN", "token-of-ann")
    return hub


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with its tokenizer; nothing is written to it."""
    return save_translator(tmp_path_factory.mktemp("saved") / "tiny-en-de")
