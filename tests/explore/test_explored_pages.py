"""The page in a real browser: text is only text, switches change the answer beside the old one, and nothing leaves."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from browser import serve
from exploring import run_of

from vanilla_transformer.explore.static_site import write_page

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")

DOCS = Path(__file__).parents[2] / "docs"
MARKUP = '<img src=x onerror="window.hurt=1"> & {value} </s> <script>window.hurt=1</script>'


@pytest.fixture(scope="module")
def addresses(explored, tmp_path_factory) -> Iterator[Any]:
    model, tokenizer, _ = explored("plain")
    folder = tmp_path_factory.mktemp("trained")
    run = run_of(model, folder / "run", [10, 20])
    write_page(model, tokenizer, folder / "page", name="trained", examples=["a dog"], run=run, documentation="../")
    folders = {"trained": folder / "page", "plain": explored("plain").folder}
    with ExitStack() as stack:
        yield {kind: stack.enter_context(serve(folder)) for kind, folder in folders.items()}


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


def test_odd_text_is_shown_as_what_it_is(visit, explored):
    text = f"{MARKUP} 👩‍👩‍👧 سلام e\u0301\u200d\ufeff"
    page = visit()
    page.fill("#text", text)
    ids = explored("plain").tokenizer(text, split_special_tokens=True)["input_ids"]
    page.wait_for_function("n => document.querySelectorAll('#encoder-embedding .chips li').length === n", arg=len(ids))
    assert page.locator("#encoder-embedding .chips small").all_text_contents() == [str(one) for one in ids]
    assert page.locator("main img, main script").count() == 0
    expect(page, "#result", re.compile("."))


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
    page.get_by_role("button", name="Undo all").click()
    playwright.expect(page.locator("#before, #disturbed")).to_have_count(0)


def test_switches_change_the_answer_beside_the_undisturbed_one(visit):
    page = visit()
    first = page.text_content("#result")
    changed = 0
    for chip, act in {
        "positions removed": lambda: page.select_option("#what-if select", "none"),
        "positions shuffled": lambda: page.select_option("#what-if select", "shuffled"),
        "no division": lambda: page.get_by_label("divide by").uncheck(),
        "mask off": lambda: page.get_by_label("mask the future").uncheck(),
        "Decoder, layer 1 skipped": lambda: page.locator("#what-if .switch.layers").nth(2).click(),
        "Decoder, layer 1, cross-attention, head 2": lambda: page.locator("#what-if .switch.heads").nth(7).click(),
        "reads “": lambda: page.get_by_label("Another text").press_sequentially("s"),
    }.items():
        act()
        page.wait_for_selector("#before")
        changed += page.text_content("#result") != first
        playwright.expect(page.locator("#disturbed button")).to_have_count(1)
        page.locator("#disturbed button", has_text=chip).click()
        page.wait_for_selector("#before", state="detached")
        playwright.expect(page.locator("#result")).to_have_text(first)
    assert changed >= 4


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


def test_the_map_lights_up_the_block_of_the_reader_and_nothing_covers_the_panel(visit):
    page = visit(viewport={"width": 1280, "height": 720})
    for words, block in (
        ("Linear · softmax", "output"),
        ("What if …", "what-if"),
        ("Feed forward", "encoder-1-feed_forward"),
    ):
        page.locator("#map a", has_text=words).first.click()
        playwright.expect(page.locator("#map [aria-current]").last).to_have_text(words)
        page.wait_for_url(re.compile(f"at={block}"))
    page.get_by_label("divide by").uncheck()
    expect(page, "#weighed", "The undisturbed answer’s probability")
    page.locator("#encoder-1 canvas").first.hover()
    corners = """(panel) => {
      const { left, top, right, bottom } = panel.getBoundingClientRect(), lowest = Math.min(bottom, innerHeight) - 9;
      const found = [[left + 9, top + 9], [right - 9, lowest]].map((at) => document.elementFromPoint(...at));
      return found.map((one) => panel.contains(one));
    }"""
    assert page.locator("#inspector").evaluate(corners) == [True, True]


def test_who_types_keeps_the_block_that_is_read_where_it_is(visit):
    page = visit(hash="#at=decoder-2-cross_attention", viewport={"width": 1280, "height": 720})
    top = "document.getElementById('decoder-2-cross_attention').getBoundingClientRect().top"
    before, tokens = page.evaluate(top), page.locator("#encoder-embedding .chips li").count()
    page.locator("#text").evaluate("input => { input.focus({ preventScroll: true }); input.setSelectionRange(9, 9); }")
    page.keyboard.type(" runs in the park")
    page.wait_for_function("n => document.querySelectorAll('#encoder-embedding .chips li').length > n + 3", arg=tokens)
    page.evaluate("async () => { await (await import('/app.js')).app.show(); }")
    assert page.evaluate(top) == pytest.approx(before, abs=2)


def test_a_row_of_cross_attention_has_the_name_of_the_token_that_its_step_writes(visit):
    page = visit(hash="#at=decoder-2-cross_attention")
    weights = page.locator("#decoder-2-cross_attention figure", has_text="Softmax")
    weights.get_by_role("button", name="as a table").click()
    written = page.locator("#answer .written button").all_text_contents()
    rows = weights.locator("tbody th").all_text_contents()
    assert rows == written[: len(rows)] and len(rows) > 2
    page.locator("#output figure").first.get_by_role("button", name="as a table").click()
    steps = zip(["<s>", *written], rows, strict=False)
    assert page.locator("#output tbody th").all_text_contents() == [" → ".join(step) for step in steps]


def test_headings_and_probabilities_are_those_of_a_model_without_its_mask_and_division(visit):
    page = visit(hash="#at=decoder-1-self_attention&mask=false&scale=false")
    expect(page, "#decoder-1-self_attention h4", "with its mask off")
    playwright.expect(page.locator("#decoder-1-self_attention figure:visible", has_text="Masked")).to_have_count(0)
    expect(page, "#decoder-1-self_attention", "Scores QKᵀ, not divided")
    first = """async () => {
      const { app: { model, result } } = await import('/app.js'), { chances } = await import('/computation.js');
      const told = (work) => { for (;;) { const { done, value } = work.next(); if (done) return value; } };
      return [1, 99].map((count) => told(chances(model, { ...result, tokens: result.tokens.slice(0, count) }))[0].p);
    }"""
    alone, with_the_others = page.evaluate(first)
    assert alone == pytest.approx(with_the_others)


def test_a_lecture_tells_where_it_is_and_escape_leaves_it(visit):
    page = visit()
    playwright.expect(page.locator("h1")).to_be_in_viewport(ratio=1)
    page.get_by_role("button", name="Lecture").click()
    page.keyboard.press("ArrowRight")
    expect(page, ".tools button", re.compile(r"^Lecture 2 / \d+$"))
    page.keyboard.press("Escape")
    expect(page, ".tools button", re.compile("^Lecture$"))


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
        assert link.get_attribute("href") == f"../paper/{chapter}.html"
        assert (DOCS / "paper" / f"{chapter}.md").is_file()


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
