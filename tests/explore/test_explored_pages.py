"""The page in a real browser: text is only text, switches change the answer beside the old one, and nothing leaves."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import serve
from exploring import log_probabilities, run_of

from vanilla_transformer.explore.static_site import write_page

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")

DOCS = Path(__file__).parents[2] / "docs"
MARKUP = '<img src=x onerror="window.hurt=1"> & {value} </s> <script>window.hurt=1</script>'


@pytest.fixture(scope="module")
def addresses(explored, tmp_path_factory) -> Iterator[Any]:
    kinds = ("plain", "tagger", "language-model", "recurrent-gru")
    served = {kind: serve(explored(kind).folder) for kind in kinds}
    model, tokenizer, _ = explored("plain")
    folder = tmp_path_factory.mktemp("trained")
    run = run_of(model, folder / "run", [10, 20])
    write_page(model, tokenizer, folder / "page", name="trained", examples=["a dog"], run=run, documentation="../")
    served["trained"] = serve(folder / "page")
    yield {kind: context.__enter__() for kind, context in served.items()}
    for context in served.values():
        context.__exit__(None, None, None)


@pytest.fixture
def visit(browser, addresses) -> Iterator[Any]:
    """Opens a page; what it asked for and what it complained of is looked at in the end."""
    asked: list[str] = []
    wrong: list[str] = []
    pages = []

    def go(kind: str = "plain", hash: str = "", **settings: Any) -> Any:
        page = browser.new_page(**settings)
        pages.append(page)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(f"{addresses[kind]}/{hash}")
        page.wait_for_selector("html[data-ready]", state="attached")
        page.evaluate("async () => { const { app } = await import('/app.js'); await app.show(); }")  # To its end.
        return page

    yield go
    assert all(page.evaluate("window.hurt === undefined") for page in pages)
    assert asked and [url for url in asked if not url.startswith((*addresses.values(), "data:"))] == []
    assert wrong == []
    for page in pages:
        page.close()


def expect(page: Any, selector: str, text: str | re.Pattern[str]) -> None:
    """Waits until the first part of the page that fits has the text: a page is drawn piece by piece."""
    playwright.expect(page.locator(selector).first).to_contain_text(text)


@pytest.mark.parametrize("text", [MARKUP, "👩‍👩‍👧 ok", "سلام", "e\u0301\u200d\ufeff", "x" * 300])
def test_odd_text_is_shown_as_what_it_is(visit, explored, text: str):
    page = visit()
    page.fill("#text", text)
    ids = explored("plain").tokenizer(text, split_special_tokens=True)["input_ids"]
    page.wait_for_function("n => document.querySelectorAll('#encoder-embedding .chips li').length === n", arg=len(ids))
    assert page.locator("#encoder-embedding .chips small").all_text_contents() == [str(one) for one in ids]
    assert page.locator("main img, main script").count() == 0
    expect(page, "#result", re.compile("."))


def test_an_empty_field_and_a_text_that_is_too_long_are_told(visit, explored):
    page = visit()
    page.fill("#text", "  ")
    expect(page, "#answer", "Type something")
    page.fill("#text", "xz " * 600)
    expect(page, ".warning", "first 512 tokens")
    page.fill("#text", "a dog")
    playwright.expect(page.locator(".warning")).to_have_count(0)
    ids = explored("plain").tokenizer("a dog")["input_ids"]
    playwright.expect(page.locator("#encoder-embedding .chips li")).to_have_count(len(ids))


def test_the_answer_is_stepped_through_both_ways_with_buttons_and_keys(visit):
    page = visit()
    steps = page.locator("#answer .written li").count()
    rows = playwright.expect(page.locator("#decoder-embedding .chips li"))
    assert steps > 2
    rows.to_have_count(steps // 2 + 1)
    page.click("#back")
    rows.to_have_count(steps // 2)
    page.locator("#answer .written button").first.click()
    rows.to_have_text(["<s>1"])
    page.locator("#map a").first.focus()
    page.keyboard.press("ArrowRight")
    rows.to_have_count(2)
    page.locator("#output .likeliest button").nth(3).click()
    rows.to_have_count(3)
    playwright.expect(page.locator("#before")).to_have_count(1)


def test_switches_change_the_answer_beside_the_undisturbed_one(visit):
    page = visit()
    first = page.text_content("#result")
    changed = 0
    for act in (
        lambda: page.select_option("#what-if select", "none"),
        lambda: page.select_option("#what-if select", "shuffled"),
        lambda: page.get_by_label("divide by").uncheck(),
        lambda: page.get_by_label("mask the future").uncheck(),
        lambda: page.locator("#what-if .switch.layers").nth(2).click(),
        lambda: page.locator("#what-if .switch.heads").nth(5).click(),
        lambda: page.get_by_label("Another text").press_sequentially("s"),
    ):
        act()
        page.wait_for_selector("#before")
        changed += page.text_content("#result") != first
        page.click("#what-if >> text=Undo all")
        page.wait_for_selector("#before", state="detached")
        playwright.expect(page.locator("#result")).to_have_text(first)
    assert changed >= 4


def test_what_a_switch_changes_is_told_in_probabilities_and_shown_as_a_picture(visit, explored):
    page = visit(hash="#off=decoder.2.cross_attention.1,encoder.1&at=decoder-2-cross_attention")
    model, tokenizer, _ = explored("plain")
    tokens = page.evaluate("async () => (await import('/app.js')).app.before.tokens")
    likely = np.exp(log_probabilities(model, tokenizer("a dog")["input_ids"], [tokens])[0])
    before, after = page.evaluate(
        """async () => {
          const { then, now } = (await import('/app.js')).app.chances;
          const all = (chances) => chances.reduce((x, { p }) => x * p, 1);
          return [all(then), all(now)];
        }"""
    )
    assert before == pytest.approx(likely, rel=1e-3) and before != after
    expect(page, "#weighed", re.compile("probability: .+ → .+ Here"))
    picture = page.locator("#decoder-2-cross_attention figure", has_text="less the undisturbed")
    playwright.expect(picture).to_be_visible()
    page.click("text=Undo all")
    playwright.expect(picture).to_be_hidden()
    title = re.compile(r"layer 2, cross-attention, head 1: \S+ → \S+")
    playwright.expect(page.locator("#what-if .switch.heads").nth(-2)).to_have_attribute("title", title)


def test_figure_1_leads_to_each_block_and_lights_up_where_the_reader_is(visit):
    page = visit()
    lit = page.locator("#map [aria-current]")
    playwright.expect(lit).to_have_text(["2", "Multi-head attention"])  # It opens at the last layer's cross-attention.
    playwright.expect(page.locator("#map b.live")).to_contain_text("%")
    page.locator("#map .stack").first.get_by_text("Feed forward").click()
    playwright.expect(lit).to_have_text(["1", "Feed forward"])
    playwright.expect(page.locator("#encoder-1-feed_forward")).to_be_in_viewport()
    page.locator("#map").get_by_text("Search").click()
    playwright.expect(lit).to_have_text(["Search"])
    page.evaluate("document.getElementById('output').scrollIntoView({ behavior: 'instant' })")
    playwright.expect(lit).to_have_text(["Linear · softmax"])


def test_an_address_leads_to_the_state_from_which_it_was_taken(visit):
    page = visit("trained")
    page.fill("#text", "two men")
    page.locator("#answer .written button").nth(1).click()
    page.locator("#encoder-1 .head").nth(1).click()
    page.locator("#encoder-1 .power").first.click()
    page.locator("#training input[type=range]").fill("0")
    page.locator("#tree-width").fill("3")
    page.get_by_label("divide by").uncheck()
    page.wait_for_url(re.compile("moment=10.*"))
    page.wait_for_url(re.compile("scale=false"))
    page.evaluate("async () => { await (await import('/app.js')).app.show(); }")
    state = """async () => {
      const { app } = await import('/app.js'), { text, step, now, whatIf, settings, result } = app;
      const head = app.chosenHead("encoder.1.self_attention");
      return [text, step, now.step, [...whatIf.heads], whatIf.scale, settings.width, head, result.tokens];
    }"""
    there = page.evaluate(state)
    assert there[:7] == ["two men", 1, 10, ["encoder.1.self_attention.1"], False, 3, 1]
    other = visit("trained", hash=page.url[page.url.index("#") :])
    assert other.evaluate(state) == there
    other.evaluate("location.hash = '#text=a+dog&token=1&temperature=hot&off=&moment=7'")
    playwright.expect(other.locator("#decoder-embedding .chips li")).to_have_count(1)
    assert other.evaluate(state)[:3] == ["a dog", 0, None]


def test_lecture_mode_goes_from_view_to_view_by_the_arrow_keys(visit):
    page = visit()
    size = "parseFloat(getComputedStyle(document.body).fontSize)"
    small, lit = page.evaluate(size), page.locator("#map [aria-current]")
    page.get_by_role("button", name="Lecture").click()
    playwright.expect(lit).to_have_text(["Embedding + positions"])
    assert page.evaluate(size) > small
    page.locator("#map a").first.focus()
    page.keyboard.press("ArrowRight")
    playwright.expect(lit).to_have_text(["1", "Multi-head attention"])
    page.keyboard.press("PageUp")
    playwright.expect(lit).to_have_text(["Embedding + positions"])


@pytest.mark.parametrize("size", [(1280, 720), (1920, 1080), (1024, 768), (390, 844)])
def test_nothing_covers_the_panel_of_the_number(visit, size: tuple[int, int]):
    width, height = size
    page = visit(hash="#at=what-if&scale=false", viewport={"width": width, "height": height})
    canvas = page.locator("#encoder-embedding canvas[role=img]").first
    canvas.scroll_into_view_if_needed()
    canvas.click(position={"x": 60, "y": 10})
    covered = page.evaluate(
        """() => {
          const panel = document.getElementById("inspector");
          const { left, top, width, height } = panel.getBoundingClientRect();
          const at = (share) => document.elementFromPoint(left + width / 2, top + share * height);
          return [0.05, 0.5, 0.95].filter((share) => !panel.contains(at(share)));
        }"""
    )
    assert covered == [] and page.locator("#app > .bar").bounding_box()["height"] < height / 3


@pytest.mark.parametrize("kind", ["plain", "recurrent-gru"])
def test_where_the_decoder_looks_is_named_by_the_token_that_it_writes(visit, kind: str):
    rows, written, path = visit(kind).evaluate(
        """async () => {
          const { app } = await import('/app.js'), { attention, decoder } = app.parts;
          const { weights } = attention ? attention[0] : decoder[1].cross;
          return [weights.rowNames, app.names(app.result.tokens.slice(0, app.step + 1)), weights.path];
        }"""
    )
    assert rows == written and path in ("Decoder, layer 2, cross-attention, head 1", "Where it looks")


def test_a_head_is_switched_off_at_its_place(visit):
    page = visit()
    page.locator("#encoder-1 .power").first.click()
    playwright.expect(page.locator("#encoder-1 .head.off")).to_have_count(1)
    page.locator("#decoder-2 summary").get_by_role("button").click()
    playwright.expect(page.locator("#decoder-2 .skip-layer[aria-pressed=true]")).to_have_count(1)
    expect(page, "#decoder-2 > details > .text", "skipped")


def test_the_tree_grows_with_the_width_and_tells_the_end(visit):
    page = visit()

    def lines(width: int) -> int:
        page.locator("#tree-width").fill(str(width))
        playwright.expect(page.locator("#search .hypotheses tbody tr")).to_have_count(width)
        return page.locator("#search .node").count() / page.locator("#search .ticks text").count()

    assert lines(1) == 1 and lines(3) == 6
    page.locator("#search .node.ended").first.dispatch_event("pointerenter")
    expect(page, ".told-node", "gives the score")


def test_the_tree_is_walked_through_by_keys(visit):
    page = visit()
    page.locator("#search .plot").focus()
    texts = []
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
        texts.append(page.text_content(".told-node"))
        playwright.expect(page.locator("#search .node.touched")).to_have_count(1)
    first, below, _, child, _ = texts
    assert texts == [first, below, first, child, first] and len({first, below, child}) == 3


def test_each_step_of_the_search_tells_whether_anything_can_still_win(visit):
    page = visit()
    for step in range(page.locator("#answer .written li").count()):
        page.locator("#answer .written button").nth(step).click()
        playwright.expect(page.locator("#search .ticks .now")).to_have_text(str(step + 1))
        expect(page, "#search .stop", re.compile("goes on|stops|its limit"))


def test_a_number_that_is_kept_follows_the_text(visit):
    page = visit()
    page.locator("#encoder-embedding canvas").last.click(position={"x": 60, "y": 10})
    shown = page.text_content("#inspector .big")
    page.fill("#text", "two men")
    playwright.expect(page.locator("#inspector .big")).not_to_have_text(shown)
    expect(page, "#inspector", "Pinned")


def test_a_number_leads_to_its_section_its_equation_and_its_chapter(visit):
    page = visit("trained")
    canvas = page.locator("#encoder-1 figure", has_text="Scores").first.locator("canvas")
    canvas.scroll_into_view_if_needed()
    playwright.expect(canvas).to_have_attribute("style", re.compile("height"))
    canvas.click(position={"x": 60, "y": 40})
    expect(page, "#inspector", "Section 3.2.1, Eq. 1")
    link = page.locator("#inspector").get_by_role("link", name="Read the chapter")
    assert link.get_attribute("href") == "../paper/3.2-attention.html"
    page.keyboard.press("Escape")
    expect(page, "#inspector", "Point at a cell")
    page.locator("#output .likeliest li").first.hover()
    expect(page, "#inspector", "exp(")
    expect(page, "#inspector", "Section 3.4")
    for section, chapter in (("#search", "6.1-translation"), ("#training", "5.3-optimizer")):
        link = page.locator(section).get_by_role("link", name="Read the chapter")
        assert (
            link.get_attribute("href") == f"../paper/{chapter}.html" and (DOCS / "paper" / f"{chapter}.md").is_file()
        )


def test_who_types_fast_gets_the_answer_to_the_last_letter_alone(visit, explored):
    page = visit()
    shown = page.evaluate(
        """async () => {
          const { app } = await import('/app.js'), texts = ['t', 'tw', 'two', 'two m', 'two men'], shown = [];
          const show = app.show.bind(app);
          app.show = () => { shown.push(app.result.source); return show(); };
          await Promise.all(texts.map((text) => app.type(text)));
          return shown;
        }"""
    )
    assert shown == [explored("plain").tokenizer("two men")["input_ids"]]


def test_a_computation_that_fails_is_told(browser, addresses):
    page = browser.new_page()
    page.goto(addresses["plain"])
    page.wait_for_selector("html[data-ready]", state="attached")
    playwright.expect(page.locator("#notice")).to_be_hidden()
    page.evaluate("async () => { const { app } = await import('/app.js'); app.whatIf.heads = 3; app.type('a'); }")
    playwright.expect(page.locator("#notice")).to_contain_text("what is shown is old")
    page.close()


def test_pictures_are_tables_for_those_who_do_not_see_them(visit):
    page = visit()
    canvases = page.locator("main canvas[role=img]:visible")
    labels = canvases.evaluate_all("canvases => canvases.map((one) => one.getAttribute('aria-label'))")
    assert len(labels) > 30 and all(label and "rows" in label for label in labels)
    assert page.locator("main figure").count() == page.locator("main figure button", has_text="as a table").count()


def test_a_telephone_shows_all_without_scrolling_sideways(visit):
    page = visit(viewport={"width": 390, "height": 844}, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#encoder-embedding canvas").first.tap()
    playwright.expect(page.locator("#inspector .big")).to_be_visible()


def test_a_tagger_labels_each_token_and_shows_the_one_that_is_chosen(visit, explored):
    page = visit("tagger")
    page.fill("#text", "two men")
    labels = page.locator("#answer .read small")
    playwright.expect(labels).to_have_count(len(explored("tagger").tokenizer("two men")["input_ids"]))
    assert set(labels.all_text_contents()) <= {"animal", "plant", "<b>stone</b>"}
    page.locator("#answer .read button").nth(1).click()
    playwright.expect(page.locator("#output .likeliest li")).to_have_count(3)


def test_a_language_model_goes_on(visit):
    page = visit("language-model")
    assert page.locator("#answer .written li").count() > 3
    written = page.locator("#answer .written")
    before = written.text_content()
    page.locator("#output .likeliest button").nth(2).click()
    page.wait_for_selector("#before")
    playwright.expect(written).not_to_have_text(before)
    page.locator("#tree-width").fill("3")
    playwright.expect(page.locator("#search .hypotheses tbody tr")).to_have_count(3)
    expect(page, "#search .equation", "|Y|^α")


def test_a_recurrent_model_shows_states_and_where_it_looks(visit):
    page = visit("recurrent-gru")
    page.locator("#attention canvas[role=img]").nth(1).focus()
    page.keyboard.press("ArrowDown")
    expect(page, "#inspector", "exp(")
    page.locator("#decoder-states canvas[role=img]").nth(1).focus()
    page.keyboard.press("ArrowRight")
    expect(page, "#inspector", "(1 − z)")


def test_the_training_is_gone_back_to_and_replayed(visit, explored):
    page = visit("trained")
    answer = page.text_content("#result")
    page.locator("#training input[type=range]").fill("0")
    page.wait_for_selector("#before")
    expect(page, "#training .moment", "after step 10")
    found = page.evaluate("async () => Array.from((await import('/app.js')).app.now.weight('lm_head.weight').data)")
    exact = explored("plain").model.lm_head.weight.detach().flatten() * 1.1
    assert found == pytest.approx(exact.tolist(), abs=exact.abs().max().item() / 127)
    page.locator("#training input[type=range]").fill("2")
    page.wait_for_selector("#before", state="detached")
    playwright.expect(page.locator("#result")).to_have_text(answer)
    page.get_by_role("button", name="Show 2 moments").click()
    playwright.expect(page.locator("#training .frame")).to_have_count(3)
    playwright.expect(page.locator("#training svg .curve")).to_have_count(2)


def test_a_drawing_begun_before_the_slider_moved_does_not_put_it_back(visit):
    page = visit("trained")
    shown = page.evaluate(
        """async () => {
          const { app } = await import('/app.js'), slider = document.querySelector('#training input[type=range]');
          const drawing = app.show();
          app.compute = () => {};
          slider.value = 0;
          slider.dispatchEvent(new Event('input'));
          await drawing;
          return [slider.value, document.querySelector('#training .moment').textContent];
        }"""
    )
    assert shown == ["0", "after step 10"]


def test_on_a_telephone_the_steps_of_a_long_training_stand_apart(visit):
    page = visit("trained", viewport={"width": 390, "height": 844})
    page.evaluate("""async () => {
        const { app } = await import("/app.js"), [part] = app.parts.training;
        part.curve = part.curve.map((one) => ({ ...one, step: one.step * 1000 }));
        part.drawn = null;
        part.update();
    }""")
    ticks = page.locator("#training .axis").first.locator(".tick text")
    edges = ticks.evaluate_all("all => all.map(one => one.getBoundingClientRect()).map(box => [box.left, box.right])")
    assert "," in ticks.last.text_content() and len(edges) > 1
    assert all(end < start for (_, end), (start, _) in pairwise(edges))
