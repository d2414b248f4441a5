"""Attention as pictures and as a page."""

import base64
import json
import re

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from refusals import refused

from vanilla_transformer.errors import ModelError
from vanilla_transformer.inspection import attention, attention_page, plot_attention, plot_heads


@pytest.fixture(scope="module")
def seen(model, tokenizer):
    return attention(model, tokenizer, "A dog runs.", "Ein Hund läuft.")


def data_of(written: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', written, re.DOTALL)[1])


def test_the_page_holds_every_weight_and_asks_nothing_of_a_network(model, tokenizer, seen):
    written = attention_page([attention(model, tokenizer, "Two men wait."), seen])
    held = data_of(written)["sentences"][1]
    for kind, weights in seen.weights.items():
        numbers = np.frombuffer(base64.b64decode(held["weights"][kind]["numbers"]), dtype="<u2") / 65535
        assert held["weights"][kind]["shape"] == list(weights.shape)
        np.testing.assert_allclose(numbers, weights.flatten(), atol=1e-5)
    assert held["sides"]["source"]["words"] == list(seen.source.words)
    assert not re.search(r"(?:src|href)=|@import|url\(|fetch\(", written)
    assert "http" not in written.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_markup_in_the_text_stays_text(model, tokenizer):
    written = attention_page([attention(model, tokenizer, "</script><b>$x_1$</b> & {{data}}", "<i>")])
    assert written.count("</script>") == attention_page([attention(model, tokenizer, "A", "B")]).count("</script>")
    assert "</script><b>$x_1$</b>" in data_of(written)["sentences"][0]["sides"]["source"]["words"]


def test_on_a_telephone_every_word_is_visible(browser, seen, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(attention_page([seen]), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 390, "height": 800})
    tab.goto(file.as_uri())
    for view, head in (("lines", "all"), ("heatmap", "1")):
        tab.select_option("#view", view)
        tab.get_by_role("button", name=head, exact=True).click()
        edges = tab.locator("#picture text, #picture canvas").evaluate_all(
            "parts => parts.map(part => part.getBoundingClientRect()).map(box => [box.left, box.right])"
        )
        assert edges and all(left >= 0 and right <= 390 for left, right in edges)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_notebook_shows_the_page_in_a_frame(seen):
    frame = seen._repr_html_()
    assert data_of(base64.b64decode(re.search(r"base64,([^\"]+)", frame)[1]).decode()) == data_of(
        attention_page([seen])
    )


def test_a_heat_map_shows_the_weights_between_the_words_in_a_notebook_too(seen):
    figure = plot_attention(seen, "cross", layer=-1, head=2)
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), seen.weights["cross"][-1, 1].numpy())
    assert [label.get_text() for label in axes.get_xticklabels()] == list(seen.source.texts)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(seen.written.texts)
    picture, _ = InteractiveShell().display_formatter.format(figure)
    assert picture["image/png"].startswith(b"\x89PNG")


def test_every_head_has_a_picture(seen):
    figure = plot_heads(seen, "decoder", "mean")
    width, height = figure.get_size_inches()
    assert width <= 8.5 and height <= 11
    for head, expected in enumerate(seen.weights["decoder"].mean(0).numpy()):
        axes, lines = figure.axes[head], plot_attention(seen, "decoder", "mean", head + 1, "lines").axes[0]
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
        assert axes.get_title() == f"head {head + 1}"
        assert len(lines.lines) == int((expected >= 0.02).sum())


def test_layers_and_heads_count_from_one(seen):
    for layer in (0, 4, -4):
        with refused(ModelError, f"no layer {layer}", "3"):
            plot_heads(seen, "cross", layer)
    with refused(ModelError, "no head 7"):
        plot_attention(seen, "cross", 1, 7)
