"""The page to try models: as programs see it, in a browser, and the command that serves it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from browser import free_port
from small_models import save, single_stack
from transformers import pipeline

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
)
from vanilla_transformer.cli import main
from vanilla_transformer.demo import build_page, open_page
from vanilla_transformer.loading.models import load_model
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tokenizer import train_tokenizer

pytest.importorskip("gradio", reason="gradio is not installed: pip install '.[demo]'")
import gradio_client  # noqa: E402

TEXTS = ["A dog runs in the park.", "Two men wait for the bus.", "Ein Hund läuft im Park.", "Zwei Männer warten."] * 5
SIZES = {"d_model": 32, "d_ff": 64, "num_heads": 4}
MARKUP = 'A <b>dog</b> <img src=x onerror="window.hurt=1"> </textarea><script>window.hurt=1</script>'
CARD = "---\nwidget:\n- text: A dog runs.\n- text: 5\n- text: {}\n---\n\n# A card\n\nIt says <b>this</b>.\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Directories of a small random model of each kind, by the name of what it does."""
    directory = tmp_path_factory.mktemp("demo")
    tokenizer = train_tokenizer(TEXTS, 300)
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=1, **SIZES)
    translator = VanillaTransformerForConditionalGeneration(config)
    translator.generation_config.max_length_beyond_source = 5
    found = {"translate": save(translator, tokenizer, directory / "translate")}
    (directory / "translate" / "README.md").write_text(CARD.format("x" * 201))
    kinds = {"classify": "classifier", "tag": "tagger", "fill": "masked-language-model", "go_on": "language-model"}
    for name, kind in kinds.items():
        found[name] = save(*single_stack(kind, TEXTS, max_position_embeddings=100, **SIZES), directory / name)
    dev = directory / "dev.txt"
    dev.write_text("A line of dev.\n")
    recipe = Recipe.of(task="language-modeling", dev=(str(dev),), output=found["go_on"])
    (directory / "go_on" / "recipe.yaml").write_text(recipe.to_yaml())
    return found


@pytest.fixture(scope="module")
def address(models: dict[str, str]) -> Iterator[str]:
    """A page of all kinds of models."""
    page = build_page([(path, *load_model(path, translates=False)) for path in models.values()], max_characters=200)
    yield open_page(page, host="127.0.0.1", port=free_port())
    page.close(verbose=False)


@pytest.fixture(scope="module")
def client(address: str) -> gradio_client.Client:
    return gradio_client.Client(address, verbose=False, analytics_enabled=False)


def one_line(text: str) -> str:
    """Returns a text as the page shows it, without the separators of lines that a random model may write."""
    return " ".join(text.splitlines())


def test_each_kind_of_model_gives_the_answers_of_its_pipeline(client, models):
    translate = pipeline("translation", model=models["translate"])
    expected = [one_line(one["translation_text"]) for one in translate("A dog runs.", num_return_sequences=2)]
    assert client.predict("A dog runs.\n\n", 2, api_name="/translate") == "\n".join(expected).strip("\n")
    assert client.predict("A dog runs.", api_name="/translate") == expected[0]
    continued = client.predict("A dog", 3, 0, api_name="/go_on")
    assert continued.startswith("A dog")
    filled = client.predict("A <mask> runs in the <mask>.", api_name="/fill")["data"]
    assert [row[0] for row in filled] == [1] * 5 + [2] * 5
    assert filled[0][2] >= filled[1][2] > 0


def test_labels_and_tags_are_those_of_predict(client, models, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("A dog runs.\n")
    assert main(["predict", models["classify"], str(tmp_path / "in.txt")]) == 0
    assert client.predict("A dog  runs.", api_name="/classify")["label"] == capsys.readouterr().out.split("\t")[0]
    assert main(["predict", models["tag"], str(tmp_path / "in.txt")]) == 0
    tagged = client.predict("A dog runs.", api_name="/tag")
    assert [one["token"] for one in tagged] == ["A", "dog", "runs."]
    assert [one["class_or_confidence"] for one in tagged] == capsys.readouterr().out.split()


def test_a_browser_shows_answers_and_asks_no_other_host(browser, address, client):
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.fill("#text textarea", MARKUP)
    for words in ("translate · classify", "It says <b>this</b>.", "A line of dev."):
        page.wait_for_selector(f"text={words}")
    page.click("text=Answer")
    expected = client.predict(MARKUP, api_name="/translate")
    page.wait_for_function("text => document.querySelector('#answer-0 textarea').value == text", arg=expected)
    page.wait_for_selector("#answer-1 >> text=%")
    assert page.evaluate("window.hurt") is None
    assert [url for url in asked if not url.startswith((address, "data:", "blob:", "about:"))] == []


def test_the_app_that_the_guide_shows_serves_a_model(models, monkeypatch):
    import gradio

    guide = (Path(__file__).parents[1] / "docs" / "guides" / "demo.md").read_text("utf-8")
    app = guide.partition("`app.py`:\n\n```python\n")[2].partition("```")[0]
    asked = []

    def block_thread(page: gradio.Blocks) -> None:
        asked.append(gradio_client.Client(page.local_url, verbose=False).predict("A dog runs.", api_name="/translate"))
        page.close(verbose=False)

    monkeypatch.setattr(gradio.Blocks, "block_thread", block_thread)
    monkeypatch.setenv("GRADIO_SERVER_PORT", str(free_port()))
    exec(app.replace("org/name", models["translate"]), {})
    [expected] = pipeline("translation", model=models["translate"])("A dog runs.")
    assert asked == [one_line(expected["translation_text"])]


def test_the_command_prints_the_address_and_ctrl_c_ends_it(models):
    port = free_port()
    command = [sys.executable, "-m", "vanilla_transformer", "demo", models["tag"], "--port", str(port)]
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
