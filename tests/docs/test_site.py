"""The site in a real browser, opened from the disk: formulas, search, and the width of a telephone."""

import pytest


@pytest.fixture
def visit(browser, site):
    """Opens a page of the site, which may ask for nothing that is not in its folder."""
    asked = []

    def opened(page, width=1280):
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(f"{site.as_uri()}/{page}")
        tab.evaluate("document.fonts.ready")
        return tab

    yield opened
    assert [url for url in asked if not url.startswith((site.as_uri(), "data:"))] == []


def test_a_root_is_wider_than_its_radicand(visit):
    wider = []
    for page in ("paper/3.2-attention.html", "paper/3.4-embeddings.html"):
        tab = visit(page)
        size = tab.evaluate("parseFloat(getComputedStyle(document.querySelector('p math')).fontSize)")
        pairs = tab.evaluate(
            "[...document.querySelectorAll('msqrt')].map(root => [root, root.firstElementChild].map("
            "part => part.getBoundingClientRect().width))"
        )
        wider += [root > radicand + size / 2 for root, radicand in pairs]
    assert len(wider) > 3 and all(wider)


def test_parentheses_grow_with_the_fraction_between_them(visit):
    tab = visit("paper/3.2-attention.html")
    heights = tab.evaluate(
        "[...document.querySelector('.math mfrac').parentElement.querySelectorAll('mo')].map("
        "one => one.getBoundingClientRect().height)"
    )
    fraction = tab.evaluate("document.querySelector('.math mfrac').getBoundingClientRect().height")
    assert fraction > 30 and sum(height >= 0.9 * fraction for height in heights) == 2


def test_formulas_have_their_own_font(visit):
    tab = visit("paper/3.2-attention.html")
    assert tab.evaluate("[...document.fonts].map(font => [font.family, font.status])") == [["STIX Two Math", "loaded"]]


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("back-translation", "guides/synthetic-pairs.html"),
        ("ensembles", "guides/combine.html"),
        ("minimum Bayes risk", "guides/combine.html"),
        ("knowledge distillation", "guides/synthetic-pairs.html"),
        ("beam search", "paper/6.1-translation.html"),
        ("fine-tuning", "guides/fine-tune.html"),
    ],
)
def test_a_name_of_the_field_finds_its_page_first(visit, words, page):
    tab = visit(f"search.html?q={words.replace(' ', '+')}")
    first = tab.locator("#search-results li a").first
    first.wait_for()
    tab.wait_for_function("document.querySelector('.search-summary')?.textContent.includes('found')")
    assert first.get_attribute("href").split("#")[0] == page


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("index", "a model that computes live"),
        ("paper/1-introduction", "watch a model compute this"),
        ("paper/3.2-attention", "Watch a model compute this"),
        ("guides/explore", "open its page"),
    ],
)
def test_the_page_that_computes_is_one_click_away(visit, site, page, words):
    tab = visit(f"{page}.html")
    tab.get_by_role("link", name=words, exact=True).click()
    tab.wait_for_url(f"{site.as_uri()}/explore/index.html*")


PHONE = ["index", "paper/3.2-attention", "paper/4-why-self-attention", "guides/combine", "guides/hugging-face"]


@pytest.mark.parametrize("page", [*PHONE, "coming-from", "measured", "reference/recipe"])
def test_no_page_is_wider_than_a_telephone(visit, page):
    tab = visit(f"{page}.html", width=390)
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    outside = tab.evaluate(
        """[...document.querySelectorAll("article p, article li, article h1, article img")]
        .filter(one => !one.closest("pre, .table-wrapper, table") && one.getBoundingClientRect().right > 390)
        .map(one => one.outerHTML)"""
    )
    assert outside == []


def test_an_option_in_a_table_is_on_one_line(visit):
    tab = visit("coming-from.html", width=390)
    heights = tab.evaluate(
        "[...document.querySelectorAll('td code .pre')].map(one => one.getBoundingClientRect().height)"
    )
    assert len(heights) > 50 and max(heights) < 1.5 * min(heights)
