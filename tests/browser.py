"""A browser and a server of files, for tests of pages; where there is no browser they skip themselves."""

import functools
import secrets
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

# Seconds that a page may take for anything: other programs may have the cores meanwhile.
PATIENCE = 180


def free_port() -> int:
    """Returns a port that nothing listens on, below those that systems give to whoever connects meanwhile."""
    while True:
        with suppress(OSError), socket.socket() as trial:
            trial.bind(("127.0.0.1", 10_000 + secrets.randbelow(22_000)))
            return trial.getsockname()[1]


@contextmanager
def open_browser() -> Iterator[Any]:
    """Chromium of the distribution, as playwright drives it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no browser: the package chromium is not installed")
    with playwright.sync_playwright() as driver:
        options = {"args": ["--no-sandbox", "--disable-gpu"], "timeout": PATIENCE * 1000}
        browser = driver.chromium.launch(executable_path=program, **options)
        playwright.expect.set_options(timeout=PATIENCE * 1000)
        for name in ("new_page", "new_context"):
            setattr(browser, name, functools.partial(_patient, getattr(browser, name)))
        try:
            yield browser
        finally:
            browser.close()


def _patient(make: Callable[..., Any], **options: Any) -> Any:
    made = make(**options)
    made.set_default_timeout(PATIENCE * 1000)
    return made


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address at which a host of static files serves a folder, to pages of other hosts too."""

    class Handler(SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            self.send_header("Access-Control-Allow-Origin", "*")
            super().end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
