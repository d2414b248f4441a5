"""The page as programs see it, and the command that serves it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
from browser import free_port

from vanilla_transformer.cli import main
from vanilla_transformer.extras.demo.shown import ShownModel

gradio = pytest.importorskip("gradio", reason="gradio is not installed: pip install '.[demo]'")
import gradio_client  # noqa: E402

from vanilla_transformer.extras.demo.live_page import build_page, open_page  # noqa: E402

SERVED = SimpleNamespace(block_thread=lambda: None)


@pytest.fixture(scope="module")
def address(shown, one_stack) -> Iterator[str]:
    """A page of several kinds of models."""
    models = [shown, *(ShownModel.load(path) for path in one_stack.values())]
    page = build_page(models)
    yield open_page(page, host="127.0.0.1", port=free_port())
    page.close(verbose=False)


@pytest.fixture(scope="module")
def client(address) -> gradio_client.Client:
    return gradio_client.Client(address, verbose=False, analytics_enabled=False)


def test_page_has_only_the_endpoint_of_its_kind_of_model(client):
    endpoints = client.view_api(return_format="dict")["named_endpoints"]
    assert set(endpoints) == {"/translate", "/classify", "/tag", "/fill", "/continue"}
    names = [one["parameter_name"] for one in endpoints["/translate"]["parameters"]]
    assert names == ["text", "num_beams", "length_penalty", "n_best"]


def test_programs_get_the_answers_of_the_page(client, shown):
    (answer,) = client.predict("A dog waits.\nTwo men run.", n_best=2, api_name="/translate")
    (expected,) = shown.reply([("A dog waits.\nTwo men run.", (4, 0.6, 2))])
    assert answer == {"model": "en-de", "answers": expected}
    assert client.predict("A dog", api_name="/classify")[0]["answers"][0]["label"]
    assert client.predict("A dog", api_name="/tag")[0]["answers"][0]["words"] == ["A", "dog"]
    assert len(client.predict("A <mask>", 3, api_name="/fill")[0]["answers"][0]["masks"][0]) == 3
    assert client.predict("A dog", 2, api_name="/continue")[0]["answers"][0]["tokens"] > 0
    assert client.predict("", api_name="/translate") == [{"model": "en-de", "answers": []}]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"text": "x" * 201}, "The text has 201 characters, but this page takes only 200: shorten it."),
        ({"text": "x", "num_beams": 10_000}, "Beam size must be between 1 and 10, not 10000."),
        ({"text": 5}, "The text must be text."),
    ],
)
def test_programs_are_refused_in_a_sentence(client, settings, sentence):
    with pytest.raises(gradio_client.exceptions.AppError) as refused:
        client.predict(**settings, api_name="/translate")
    assert str(refused.value) == sentence


def test_ten_programs_at_once_get_their_own_answers(address, shown):
    texts = [f"{word} waits." for word in ["A", "dog", "Two", "men", "park", "bus", "the", "in", "run", "for"]]

    def ask(text):
        return gradio_client.Client(address, verbose=False, analytics_enabled=False).predict(
            text, api_name="/translate"
        )

    with ThreadPoolExecutor(len(texts)) as threads:
        found = list(threads.map(ask, texts))
    for text, (answer,) in zip(texts, found, strict=True):
        ((expected,),) = shown.reply([(text, (4, 0.6, 1))])
        assert answer["answers"][0]["translations"][0]["text"] == expected["translations"][0]["text"]


def test_neither_the_page_nor_its_start_asks_any_other_host(shown, hosts):
    page = build_page([shown])
    client = gradio_client.Client(
        open_page(page, host="127.0.0.1", port=free_port()), verbose=False, analytics_enabled=False
    )
    assert client.predict("A dog waits.", api_name="/translate")
    page.close(verbose=False)
    assert hosts == {"127.0.0.1"}
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"


def test_the_page_is_there_for_this_machine_alone(address):
    port = int(address.rstrip("/").rpartition(":")[2])
    with open("/proc/net/tcp") as table:
        listening = [line.split()[1] for line in table if line.split()[3] == "0A"]
    assert [one for one in listening if int(one.partition(":")[2], 16) == port] == [f"0100007F:{port:04X}"]


def test_missing_model_bad_address_and_used_port_are_reported(translating, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for words, code, sentence in (
            (["--port", port], 2, f"The page cannot be served at 127.0.0.1:{port} (address already in use): give"),
            (["--port", "0"], 2, "--port must be between 1 and 65535, not 0."),
            (["--host", "not.an.address.invalid"], 2, "--host not.an.address.invalid is not an address"),
            (["--max-characters", "0"], 2, "--max-characters must be at least 1, not 0."),
        ):
            assert main(["demo", translating, *words]) == code
            output, errors = capsys.readouterr()
            assert output == "" and sentence in errors and len(errors.splitlines()) == 1
    assert main(["demo", "/nowhere", "--port", str(free_port())]) == 1
    assert "There is no model directory /nowhere." in capsys.readouterr().err.splitlines()[-1]
    assert main(["demo"]) == 2
    assert "Name a model" in capsys.readouterr().err


def test_models_of_one_name_are_told_apart_by_their_places(translating, tmp_path, monkeypatch):
    other = tmp_path / "en-de"
    other.symlink_to(translating)
    served = []
    monkeypatch.setattr(
        "vanilla_transformer.extras.demo.live_page.build_page", lambda models: served.extend(models) or SERVED
    )
    monkeypatch.setattr("vanilla_transformer.extras.demo.live_page.open_page", lambda page, host, port: "")
    assert main(["demo", translating, str(other), "--port", str(free_port())]) == 0
    assert [model.name for model in served] == [translating, str(other)]


def test_the_command_prints_the_address_and_ctrl_c_ends_it(translating, tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "vanilla_transformer", "demo", translating, "--port", str(port)]
    # Where the tests run in the background, Ctrl-C may be ignored, which processes inherit.
    heeded = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=heeded) as server:
        assert server.stdout is not None and server.stderr is not None
        line = server.stdout.readline()
        assert line == f"http://127.0.0.1:{port}/\n", server.stderr.read()
        server.send_signal(signal.SIGINT)
        try:
            _, errors = server.communicate(timeout=300)
        finally:
            server.kill()
    assert server.returncode in (0, 130) and "Traceback" not in errors
