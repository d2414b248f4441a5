"""The page in a real browser: what is typed is answered, text is only text, and nothing is asked of any other host."""

import threading
from collections.abc import Iterator

import pytest
from browser import free_port, open_browser

from vanilla_transformer.extras.demo.answers import DemoError
from vanilla_transformer.extras.demo.shown import ShownModel

pytest.importorskip("gradio", reason="gradio is not installed: pip install '.[demo]'")
playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")

from vanilla_transformer.extras.demo.live_page import build_page, open_page  # noqa: E402

MARKUP = 'A <b>dog</b> & {{value}} ${1+1} <img src=x onerror="window.hurt=1"> </iframe><script>window.hurt=1</script>'
TEXT, ANSWER, OTHER, VIEW = "#vt-text textarea", "#vt-answer-0", "#vt-answer-1", "#vt-view-0 iframe"


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(shown, one_stack) -> Iterator[str]:
    """A page with a model that translates and one that classifies."""
    page = build_page([shown, ShownModel.load(one_stack["classify"], max_characters=200)])
    yield open_page(page, host="127.0.0.1", port=free_port())
    page.close(verbose=False)


@pytest.fixture
def page(browser, address) -> Iterator["playwright.Page"]:
    """The page as a visitor opens it; what it asks for and what it complains of is looked at in the end."""
    page = browser.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(address)
    page.wait_for_selector(TEXT)
    yield page
    assert page.evaluate("window.hurt") is None
    page.close()
    own = (address, "data:", "blob:", "about:")
    assert asked and [url for url in asked if not url.startswith(own)] == []
    assert wrong == []


def expect(page, selector: str, text: str) -> None:
    playwright.expect(page.locator(selector)).to_contain_text(text)


def test_every_model_answers_the_typed_text(page):
    expect(page, ANSWER, "Type a text: each line is translated.")
    page.locator(TEXT).press_sequentially("A dog waits.", delay=10)
    expect(page, ANSWER, "Ein Hund wartet.")
    expect(page, OTHER, "animal")
    page.fill(TEXT, "Two men run.\nA dog waits.")
    expect(page, ANSWER, "Zwei Männer laufen.")
    expect(page, ANSWER, "Ein Hund wartet.")
    page.fill(TEXT, "")
    expect(page, ANSWER, "Type a text: each line is translated.")


def test_controls_change_the_answer(page):
    page.fill(TEXT, "A dog waits.")
    expect(page, ANSWER, "Ein Hund wartet.")
    playwright.expect(page.locator(f"{ANSWER} li")).to_have_count(1)
    page.fill("#vt-n_best input[type=number]", "3")
    page.press("#vt-n_best input[type=number]", "Enter")
    playwright.expect(page.locator(f"{ANSWER} li")).to_have_count(3)
    page.fill("#vt-num_beams input[type=number]", "2")
    page.press("#vt-num_beams input[type=number]", "Enter")
    expect(page, ANSWER, "A beam of 2 cannot give 3 translations: choose a beam size of 3 or more.")


def test_an_example_of_the_card_is_a_click_away(page):
    page.get_by_text("A dog runs.", exact=True).click()
    expect(page, ANSWER, "Hund")
    playwright.expect(page.locator(TEXT)).to_have_value("A dog runs.")


def test_long_text_is_refused_in_a_sentence_and_the_next_one_answered(page):
    page.fill(TEXT, "a dog " * 2000)
    expect(page, ANSWER, "The text has 12,000 characters, but this page takes only 200: shorten it.")
    expect(page, OTHER, "The text has 12,000 characters, but this page takes only 200: shorten it.")
    page.fill(TEXT, "A dog waits.")
    expect(page, ANSWER, "Ein Hund wartet.")


def test_markup_is_shown_as_text_in_answers_alignments_and_attention(page):
    page.fill(TEXT, MARKUP)
    expect(page, f"{ANSWER} .vt-source", " ".join(MARKUP.split()))
    assert page.locator(f"{ANSWER} b, {ANSWER} img, {ANSWER} script").count() == 0
    page.click("#vt-look-0")
    frame = page.frame_locator(VIEW)
    playwright.expect(frame.locator("#picture")).to_contain_text("<")
    assert frame.locator("img").count() == 0
    assert frame.locator("body").evaluate("() => window.hurt") is None


def test_aligned_words_are_marked_where_one_points(page, shown):
    page.fill(TEXT, "Two men wait for the bus.")
    expect(page, ANSWER, "Zwei Männer warten auf den Bus.")
    ((answer,),) = shown.reply([("Two men wait for the bus.", (4, 0.6, 1))])
    links = [link.split("-") for link in answer["translations"][0]["alignment"].split()]
    source, target = links[0]
    linked = f"{ANSWER} .vt-source .vt-linked"
    page.hover(f"{ANSWER} .vt-text .vt-word >> nth={target}")
    expected = {one for one, other in links if other == target}
    playwright.expect(page.locator(linked)).to_have_count(len(expected))
    assert set(page.locator(linked).evaluate_all("words => words.map(word => word.dataset.source)")) == expected
    page.hover("#vt-text label")
    playwright.expect(page.locator(linked)).to_have_count(0)
    page.focus(f"{ANSWER} .vt-source .vt-word >> nth={source}")
    expected = {other for one, other in links if one == source}
    playwright.expect(page.locator(f"{ANSWER} .vt-text .vt-linked")).to_have_count(len(expected))


def test_attention_is_shown_for_the_text_that_stands_there(page):
    page.fill(TEXT, "A dog waits.")
    expect(page, ANSWER, "Ein Hund wartet.")
    page.click("#vt-look-0")
    frame = page.frame_locator(VIEW)
    playwright.expect(frame.locator("#title")).to_have_text("Attention of en-de")
    playwright.expect(frame.locator("#picture")).to_contain_text("Hund")
    frame.locator("#view").select_option("heatmap")
    playwright.expect(frame.locator("#picture canvas")).to_have_count(1)
    page.click("#vt-look-1")
    other = page.frame_locator("#vt-view-1 iframe")
    playwright.expect(other.locator("#picture")).to_contain_text("dog")


def test_the_api_page_is_shown_and_asks_no_other_host(page):
    page.get_by_text("Use via API").click()
    expect(page, "body", "/translate")
    expect(page, "body", "/classify")
    page.wait_for_timeout(500)


def test_ten_visitors_at_once_get_their_own_answers(browser, address, shown):
    texts = [f"{word} waits." for word in ["A", "dog", "Two", "men", "park", "bus", "the", "in", "run", "for"]]
    pages = []
    for _ in texts:
        page = browser.new_context().new_page()
        page.goto(address)
        page.wait_for_selector(TEXT)
        pages.append(page)
    for page, text in zip(pages, texts, strict=True):
        page.fill(TEXT, text)
    for page, text in zip(pages, texts, strict=True):
        ((answer,),) = shown.reply([(text, (4, 0.6, 1))])
        expect(page, f"{ANSWER} .vt-source", text)
        expect(page, f"{ANSWER} .vt-text", answer["translations"][0]["text"])
        page.context.close()


def test_only_the_latest_text_is_answered_while_the_model_works(browser, shown, answering):
    asked: list[str] = []
    go_on, at_work = threading.Event(), threading.Event()
    answers = shown.kind.answers

    def slow(lines, settings):
        asked.extend(lines)
        at_work.set()
        go_on.wait(600)
        return answers(lines, settings)

    served = build_page([answering(slow)])
    page = browser.new_page()
    page.goto(open_page(served, host="127.0.0.1", port=free_port()))
    page.wait_for_selector(TEXT)
    page.fill(TEXT, "A")
    while not at_work.wait(0.05):
        page.wait_for_timeout(50)
    for text in ("A d", "A do", "A dog", "A dog waits."):
        page.fill(TEXT, text)
        page.wait_for_timeout(50)
    go_on.set()
    expect(page, ANSWER, "Ein Hund wartet.")
    assert asked == ["A", "A dog waits."]
    page.close()
    served.close(verbose=False)


def test_beyond_what_may_wait_a_visitor_is_told_and_the_page_goes_on(browser, shown, answering):
    go_on, at_work = threading.Event(), threading.Event()
    answers = shown.kind.answers

    def slow(lines, settings):
        at_work.set()
        go_on.wait(600)
        return answers(lines, settings)

    served = build_page([answering(slow)], waiting=1)
    address = open_page(served, host="127.0.0.1", port=free_port())
    pages = [browser.new_context().new_page() for _ in range(3)]
    for page in pages:
        page.goto(address)
        page.wait_for_selector(TEXT)
    pages[0].fill(TEXT, "A dog waits.")
    while not at_work.wait(0.05):
        pages[0].wait_for_timeout(50)
    with pages[1].expect_response("**/queue/join*"):
        pages[1].fill(TEXT, "A dog waits.")
    pages[2].fill(TEXT, "A dog waits.")
    expect(pages[2], "body", "This application is currently busy. Please try again.")
    go_on.set()
    for page in pages[:2]:
        expect(page, ANSWER, "Ein Hund wartet.")
    pages[2].fill(TEXT, "Two men run.")
    expect(pages[2], ANSWER, "Zwei Männer laufen.")
    for page in pages:
        page.context.close()
    served.close(verbose=False)


def test_an_error_of_the_model_shows_no_trace_of_the_server(browser, answering):
    failed = threading.Event()

    def failing(lines, settings):
        if "unknown" in lines:
            failed.set()
        raise DemoError("Not now.") if "known" in lines else RuntimeError("/secret/place")

    served = build_page([answering(failing)])
    page = browser.new_page()
    page.goto(open_page(served, host="127.0.0.1", port=free_port()))
    page.wait_for_selector(TEXT)
    page.fill(TEXT, "known")
    expect(page, ANSWER, "Not now.")
    page.fill(TEXT, "unknown")
    while not failed.wait(0.05):
        page.wait_for_timeout(50)
    page.wait_for_timeout(1500)
    assert "/secret/place" not in page.content()
    page.close()
    served.close(verbose=False)
