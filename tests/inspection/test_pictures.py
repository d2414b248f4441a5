"""Attention as pictures and as a page."""

import base64
import html
import json
import re
import shutil
import subprocess
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from browser import PATIENCE
from IPython.core.interactiveshell import InteractiveShell
from matplotlib.font_manager import fontManager, get_font
from matplotlib.transforms import Bbox
from refusals import refused

from vanilla_transformer import VanillaTransformerDecoderConfig, VanillaTransformerDecoderForCausalLM
from vanilla_transformer.errors import ModelError
from vanilla_transformer.inspection import (
    attention,
    attention_page,
    lettering,
    plot_attention,
    plot_heads,
    plots,
)


@pytest.fixture(scope="module")
def seen(model, tokenizer):
    return attention(model, tokenizer, "A dog runs.", "Ein Hund läuft.")


def data_of(written: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', written, re.DOTALL)[1])


def test_the_page_holds_every_weight_and_asks_nothing_of_a_network(seen):
    written = attention_page([seen])
    held = data_of(written)["sentences"][0]
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


def test_a_page_that_no_browser_shows_is_refused(seen):
    with refused(ModelError, "sentences"):
        attention_page([seen] * 100_000)


@pytest.mark.skipif(not shutil.which("chromium"), reason="no browser: the package chromium is not installed")
def test_a_browser_draws_a_line_for_each_weight_that_can_be_seen(seen, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(attention_page([seen]), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom"]
    offline = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    shown = subprocess.run(
        ["chromium", *options, *offline, file.as_uri()], capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout
    words = seen.words()
    assert shown.count("<line ") == int((words.weights["cross"][-1, 0] >= 0.02).sum())
    for word in words.source.texts:
        assert f">{html.escape(word)}</text>" in shown


# Of every text on a canvas, where it begins and ends, and the size of the canvas.
WRITTEN = """
window.written = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const { actualBoundingBoxLeft: left, actualBoundingBoxRight: right } = this.measureText(text);
  for (const at of [x - left, x + right]) {
    const place = this.getTransform().transformPoint(new DOMPoint(at, y));
    written.push([text, place.x, this.canvas.width, place.y, this.canvas.height]);
  }
  return fill.call(this, text, x, y);
};
"""


@pytest.mark.parametrize("texts", [("Sie", "no"), ("Ein Hund läuft.", "Nottinghamshire " * 12)])
def test_a_heat_map_of_the_page_has_room_for_all_that_is_written_on_it(browser, model, tokenizer, tmp_path, texts):
    file = tmp_path / "page.html"
    file.write_text(attention_page([attention(model, tokenizer, *texts)]), encoding="utf-8")
    tab = browser.new_page()
    tab.add_init_script(WRITTEN)
    tab.goto(file.as_uri())
    tab.select_option("#view", "heatmap")
    written = tab.evaluate("written")
    assert {"keys: source", "queries: target as written"} <= {text for text, *_ in written}
    outside = [text for text, x, width, y, height in written if not (0 <= x <= width and 0 <= y <= height)]
    assert outside == []


@pytest.mark.parametrize(("view", "head"), [("lines", "1"), ("heatmap", "1"), ("lines", "all"), ("heatmap", "all")])
def test_on_a_telephone_every_word_is_visible(browser, seen, tmp_path, view, head):
    file = tmp_path / "page.html"
    file.write_text(attention_page([seen]), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 390, "height": 800})
    tab.goto(file.as_uri())
    tab.select_option("#view", view)
    tab.get_by_role("button", name=head, exact=True).click()
    edges = tab.locator("#picture text, #picture canvas").evaluate_all(
        "parts => parts.map(part => part.getBoundingClientRect()).map(box => [box.left, box.right])"
    )
    assert edges and all(left >= 0 and right <= 390 for left, right in edges)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_lines_take_the_room_that_a_frame_gets_later(browser, seen, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(attention_page([seen]), encoding="utf-8")
    tab = browser.new_page()
    tab.goto(file.as_uri())
    drawn = """async (width) => {
        document.body.style.width = width;
        for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
        return document.querySelector("#picture svg").getBoundingClientRect().width;
    }"""
    narrow, wide = tab.evaluate(drawn, "150px"), tab.evaluate(drawn, "900px")
    assert narrow < 300 < wide


def test_a_notebook_shows_the_page_in_a_frame(seen):
    frame = seen._repr_html_()
    assert data_of(base64.b64decode(re.search(r"base64,([^\"]+)", frame)[1]).decode()) == data_of(
        attention_page([seen])
    )


def test_a_heat_map_shows_the_weights_between_the_words(seen):
    figure = plot_attention(seen, "cross", layer=-1, head=2)
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), seen.weights["cross"][-1, 1].numpy())
    assert [label.get_text() for label in axes.get_xticklabels()] == list(seen.source.texts)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(seen.written.texts)
    assert axes.get_title() == "cross-attention, layer 3, head 2"
    assert axes.get_ylabel() == "queries: target as written" and axes.get_xlabel() == "keys: source"
    assert "attention weight" in [other.get_ylabel() for other in figure.axes]


def test_a_notebook_shows_the_figure_that_a_cell_ends_with(seen):
    for figure in (plot_attention(seen), plot_heads(seen)):
        picture, _ = InteractiveShell().display_formatter.format(figure)
        assert picture["image/png"].startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_a_heat_map_of_few_words_has_room_for_its_title(model, tokenizer, kind):
    axes = plot_attention(attention(model, tokenizer, "A", "Sie").words(), kind).axes[0]
    axes.figure.canvas.draw()
    title = axes.title.get_window_extent()
    assert title.x0 >= 0 and title.x1 <= axes.figure.bbox.x1


def test_letters_stand_upright_and_lean_where_words_have_no_room(model, tokenizer):
    def turned(text):
        axes = plot_attention(attention(model, tokenizer, text, "Ein").words(), "encoder").axes[0]
        return {label.get_rotation() for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]}

    assert turned("telephone") == {0}
    assert turned("Nottinghamshire " * 40) == {0, 45}


@pytest.mark.filterwarnings("ignore:No font")
def test_words_of_wide_letters_lean_before_narrow_ones(model, tokenizer):
    turned = []
    for text in ("abc d", "天安门 和"):
        figure = plot_heads(attention(model, tokenizer, text, "Ein").words(), "encoder")
        turned.append({label.get_rotation() for label in figure.axes[2].get_xticklabels()})
    assert turned == [{0}, {45}]


@pytest.fixture(scope="module")
def without_font():
    """Three characters that no font of this machine has."""
    fonts = [font for font in fontManager.ttflist if "Last Resort" not in font.name]  # It has a box for each of them.
    known = set().union(*(get_font(font.fname).get_charmap() for font in fonts))
    rare = (chr(point) for point in range(0x10000, 0x30000) if point not in known)
    return tuple(islice(filter(str.isprintable, rare), 3))


@pytest.mark.parametrize("plot", [plot_attention, plot_heads])
def test_numbers_in_place_of_characters_do_not_cover_each_other(model, tokenizer, without_font, plot):
    a, b, c = without_font
    with pytest.warns(UserWarning, match="No font"):
        figure = plot(attention(model, tokenizer, f"{a}{b}{c} {a}{b}{c} {a} {b}{c}", "Ein").words(), "encoder")
    figure.canvas.draw()
    labels = figure.axes[0 if plot is plot_attention else 2].get_xticklabels()
    boxes = [label.get_window_extent() for label in labels]
    assert {label.get_rotation() for label in labels} == {45} or not any(map(Bbox.overlaps, boxes, boxes[1:]))


def test_characters_without_a_font_are_shown_by_number_and_named(without_font):
    a, b, _ = without_font
    with pytest.warns(UserWarning, match=f"No font on this machine has {a}{b}"):
        families, shown = lettering.lettering(["Ա", "$x$", f"{b}{a}!"])
    assert list(shown.values()) == ["Ա", r"\$x\$", f"[{ord(b):X} {ord(a):X}]!"] and families == ["DejaVu Sans"]


def test_a_single_word_is_seen_in_pieces_and_several_in_words(model, tokenizer):
    seen = attention(model, tokenizer, "telephone", "Ein Hund")
    assert len(seen.source) > 2 and seen.words().source == seen.source
    assert seen.words().written.texts == ("Ein", "Hund", "</s>")
    held = data_of(attention_page([seen]))["sentences"][0]
    assert held["sides"]["source"]["words"] == list(seen.source.texts) and held["text"] == "telephone </s>"


def test_the_text_of_a_language_model_is_no_target(tokenizer):
    config = VanillaTransformerDecoderConfig.from_preset("tiny", vocab_size=len(tokenizer))
    seen = attention(VanillaTransformerDecoderForCausalLM(config), tokenizer, "A dog runs.")
    assert seen.sides("decoder") == ("text", "text")
    assert data_of(attention_page([seen]))["sentences"][0]["names"] == {"decoder": ["text", "text"]}


def test_lines_go_from_what_attends_to_what_is_attended_to(seen):
    axes = plot_attention(seen, "encoder", layer=1, head="all", view="lines").axes[0]
    assert len(axes.lines) == int((seen.weights["encoder"][0] >= 0.02).sum())
    with refused(ModelError, "'lines'"):
        plot_attention(seen, head="all")


def test_every_head_has_a_picture(seen):
    figure, lines = plot_heads(seen, "decoder", "mean"), plot_heads(seen, "decoder", "mean", "lines")
    width, height = figure.get_size_inches()
    assert width <= 8.5 and height <= 11
    for head, expected in enumerate(seen.weights["decoder"].mean(0).numpy()):
        axes, of_lines = figure.axes[head], lines.axes[head]
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
        assert axes.get_title() == of_lines.get_title() == f"head {head + 1}"
        assert len(of_lines.lines) == int((expected >= 0.02).sum())


def test_pictures_and_pages_have_one_palette():
    room = Path(plots.__file__).parent
    for page in (room / "page.html", room.parent / "explore" / "web" / "style.css"):
        light = page.read_text(encoding="utf-8").split("--zero", 1)[1]
        found = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", f"--zero{light}"[:200]))
        assert tuple(found[name] for name in ("zero", "some", "much")) == plots.PALETTE, page
