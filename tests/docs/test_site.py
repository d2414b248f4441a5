"""The site in a real browser, opened from the disk: what it asks for, links, and the width of a telephone."""

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


@pytest.mark.parametrize(
    ("page", "words"),
    [("index", "a model that computes live"), ("paper/3.2-attention", "Watch a model compute this")],
)
def test_the_page_that_computes_is_one_click_away(visit, site, page, words):
    tab = visit(f"{page}.html")
    tab.get_by_role("link", name=words, exact=True).click()
    tab.wait_for_url(f"{site.as_uri()}/explore/index.html*")


@pytest.mark.parametrize("page", ["index", "paper/3.2-attention", "coming-from", "measured", "reference/recipe"])
def test_no_page_is_wider_than_a_telephone(visit, page):
    tab = visit(f"{page}.html", width=390)
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    outside = tab.evaluate(
        """[...document.querySelectorAll("article p, article li, article h1, article img")]
        .filter(one => !one.closest("pre, .table-wrapper, table") && one.getBoundingClientRect().right > 390)
        .map(one => one.outerHTML)"""
    )
    assert outside == []
    sideways = (
        "[...document.querySelectorAll('article pre')].filter(one => one.scrollWidth > one.clientWidth + 1).length"
    )
    assert tab.evaluate(sideways) == 0
