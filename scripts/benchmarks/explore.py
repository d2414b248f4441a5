"""Measures the page that `explore` writes, in Chromium: its size, the first picture, and the answer to a key.

    python -m scripts.benchmarks.explore MODEL [MODEL ...] --words telephone chatbot

The times are the page's own: from the start of its loading until the first picture is drawn, and from a key until the
frame with the new answer, while the words are typed letter by letter and the arrow key then steps back through the
answer. `blocked` is the longest time for which the page could not react. A server on this machine serves the page, so
the times exclude the network.
"""

import argparse
import functools
import shutil
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from vanilla_transformer.extras.explore.static_site import write_model_page

# Waits for the frame after the one that is being made.
_WATCH = """
const painted = (told) => requestAnimationFrame(() => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => told(performance.now());
  port2.postMessage(0);
});
window.blocked = 0;
new PerformanceObserver((list) => {
  for (const { duration } of list.getEntries()) window.blocked = Math.max(window.blocked, duration);
}).observe({ type: "longtask", buffered: true });
const poll = setInterval(() => {
  if (!document.querySelector("main canvas")?.style.height) return;
  clearInterval(poll);
  painted((now) => { window.firstPicture = now; });
}, 5);
let pressed = null;
addEventListener("keydown", (event) => { pressed = event.timeStamp; window.taken = null; }, true);
new MutationObserver((changes) => {
  const changed = changes.some(({ target }) => target.nodeType === 1 && target.id === "answer");
  if (pressed === null || !changed) return;
  const since = pressed;
  pressed = null;
  painted((now) => { window.taken = now - since; });
}).observe(document, { childList: true, subtree: true });
"""


def main() -> None:
    """Writes a page for each model, opens it and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="model directory")
    parser.add_argument("--words", nargs="+", default=["telephone", "chatbot", "unfathomableness"])
    parser.add_argument("--openings", type=int, default=5, help="times that the page is opened")
    parser.add_argument("--browser", help="Chromium's program (default: chromium)")
    arguments = parser.parse_args()
    rows = []
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            write_model_page(model, Path(folder), training=model)
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 1e6
            with serve_page(Path(folder), arguments.browser, init=_WATCH) as open_page:
                rows.append(f"| {model.name} | {_row(open_page, size, arguments)} |")
    print("| model | parameters | page, MB | first picture, s | a letter, ms | a step back, ms | blocked, ms |")
    print("|---|---|---|---|---|---|---|", *rows, sep="\n")


@contextmanager
def serve_page(folder: Path, program: str | None, init: str = "") -> Iterator[Any]:
    """Yields a function that opens the page anew, each time after the script `init`."""
    from playwright.sync_api import sync_playwright

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    with (
        ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server,
        sync_playwright() as driver,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = driver.chromium.launch(executable_path=program or shutil.which("chromium"), args=["--no-sandbox"])
        print(f"Chromium {browser.version}\n")

        def open_page() -> Any:
            page = browser.new_context().new_page()
            page.add_init_script(init)
            page.goto(f"http://127.0.0.1:{server.server_address[1]}")
            return page

        try:
            yield open_page
        finally:
            browser.close()
            server.shutdown()


def _row(open_page: Any, size: float, arguments: argparse.Namespace) -> str:
    opened, letters, steps, blocked = [], [], [], []
    for _ in range(arguments.openings):
        page = open_page()
        page.wait_for_selector("html[data-ready]", state="attached")
        opened.append(page.evaluate("window.blocked = 0, window.firstPicture"))
        parameters = page.evaluate("async () => (await import('/app.js')).app.model.parameters")
        for word in arguments.words:
            page.locator("#text").focus()
            page.keyboard.press("Control+A")
            letters += [_press(page, letter) for letter in word]
            page.locator("h1").click()
            steps += [_press(page, "ArrowLeft") for _ in range(page.locator("#answer .written li").count() - 1)]
        blocked.append(page.evaluate("window.blocked"))
        page.close()
    return f"{parameters:,} | {size:.1f} | {_told([one / 1000 for one in opened], 2)} | " + " | ".join(
        _told(times, 0) for times in (letters, steps, blocked)
    )


def _press(page: Any, key: str) -> float:
    """Returns the milliseconds from a key to the frame with its answer; then lets the page come to rest."""
    page.keyboard.press(key)
    page.wait_for_function("() => window.taken", polling=5)
    taken = page.evaluate("window.taken")
    page.wait_for_timeout(100)
    return float(taken)


def _told(values: list[float], digits: int) -> str:
    """Writes the median, the 95th percentile and the most."""
    if not values:
        return "–"
    ordered = sorted(values)
    late = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return f"{statistics.median(values):.{digits}f} (95%: {late:.{digits}f}, most: {ordered[-1]:.{digits}f})"


if __name__ == "__main__":
    main()
