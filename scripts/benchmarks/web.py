"""Compares a model in the browser with the same model in Python: translations, size, loading time and speed.

    npm install --no-save onnxruntime-web@1.30.0 @huggingface/tokenizers@0.2.0
    python -m scripts.benchmarks.web MODEL SOURCE --references TARGET --packages node_modules

SOURCE and TARGET are files of lines. The model is exported, and translates on one thread of torch a line at a time,
in node, and on the page in Chromium, which playwright drives. A server on this machine serves the page, so the times
exclude the network; the table gives the megabytes to load, plain and compressed by gzip.
"""

import argparse
import functools
import gzip
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from scripts.benchmarks.decode import read_lines
from vanilla_transformer.extras.export.to_web import GRAPHS, export_web
from vanilla_transformer.translation import load_model, translate_lines

DTYPES = ("q8", "fp32")


@dataclass
class Row:
    """A contestant's translations, tokens per second of each turn, and seconds until it was ready."""

    translations: list[str]
    rates: list[float] = field(default_factory=list)
    load: float | None = None


def main() -> None:
    """Exports, translates and prints two tables."""
    arguments = _arguments()
    torch.set_num_threads(1)
    lines = read_lines(arguments.source, arguments.lines)
    model, tokenizer = load_model(arguments.model, device="cpu")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "web"
        export_web(model, tokenizer, folder, arguments.packages)
        rows = {"torch, float32": _torch(model, tokenizer, lines, arguments.turns)}
        for dtype in DTYPES:
            rows[f"node, {dtype}"] = _node(folder, arguments.packages, lines, dtype)
        with serve_page(folder, arguments.browser) as open_page:
            for dtype in DTYPES:
                rows[f"Chromium, {dtype}"] = _browser(open_page(), lines, dtype, arguments.turns)
        _print_sizes(folder)
    references = read_lines(arguments.references, arguments.lines) if arguments.references else None
    _print_rows(rows, references)


def _torch(model: Any, tokenizer: Any, lines: list[str], turns: int) -> Row:
    row = Row([])
    for _ in range(turns):
        begun = time.perf_counter()
        found = [next(translate_lines(model, tokenizer, [line])) for line in lines]
        seconds = time.perf_counter() - begun
        row.translations = [one.text for one in found]
        row.rates.append(sum(one.hypotheses[0].tokens for one in found) / seconds)
    return row


def _node(folder: Path, packages: Path, lines: list[str], dtype: str) -> Row:
    inside = packages.resolve() / "node_modules"
    link = folder / "node_modules"
    if not link.exists():
        link.symlink_to(inside if inside.is_dir() else packages.resolve())
    command = ["node", str(folder / "translate.mjs"), "--dtype", dtype]
    text = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    return Row(text.split("\n")[:-1])


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


def _browser(page: Any, lines: list[str], dtype: str, turns: int) -> Row:
    page.select_option("#dtype", dtype)
    first, again = (_translate(page, lines[:1])[2] for _ in range(2))
    row = Row([], load=first - again)
    for _ in range(turns):
        row.translations, rate, _ = _translate(page, lines)
        row.rates.append(rate)
    page.close()
    return row


def _translate(page: Any, lines: list[str]) -> tuple[list[str], float, float]:
    """Returns the translations, tokens per second by the page's clock, and seconds by this process's clock."""
    page.fill("#source", "\n".join(lines))
    begun = time.perf_counter()
    page.click("#translate")
    page.wait_for_selector("#translate:enabled", timeout=600_000)
    seconds = time.perf_counter() - begun
    told = re.search(r"(\d+) tokens in ([\d.]+) s", page.text_content("#status"))
    if told is None:
        raise SystemExit(f"The page says: {page.text_content('#status')}")
    return page.text_content("#target").split("\n"), int(told[1]) / float(told[2]), seconds


def _print_sizes(folder: Path) -> None:
    parts = {
        "programs": [path for path in (folder / "vendor").iterdir() if not path.name.startswith("LICENSE")],
        "8 bits": [folder / GRAPHS["q8"]],
        "float32": [folder / GRAPHS["fp32"]],
        "page, tokenizer, settings": [path for path in folder.iterdir() if path.suffix not in (".onnx", "")],
    }
    print("| | MB | as gzip sends them |\n|---|---|---|")
    for name, files in parts.items():
        whole = sum(path.stat().st_size for path in files) / 1e6
        sent = sum(len(gzip.compress(path.read_bytes(), 6)) for path in files) / 1e6
        print(f"| {name} | {whole:.1f} | {sent:.1f} |")


def _print_rows(rows: dict[str, Row], references: list[str] | None) -> None:
    from sacrebleu.metrics import BLEU, CHRF

    expected = next(iter(rows.values())).translations
    print("\n| | lines that differ | BLEU | chrF | tokens a second, median (least to most) | loading, s |")
    print("|---|---|---|---|---|---|")
    bleu, chrf = BLEU(force=True), CHRF()
    for name, row in rows.items():
        differ = sum(a != b for a, b in zip(row.translations, expected, strict=True))
        scores = [
            f"{metric.corpus_score(row.translations, [references]).score:.2f}" if references else ""
            for metric in (bleu, chrf)
        ]
        rates = row.rates and f"{statistics.median(row.rates):.0f} ({min(row.rates):.0f} to {max(row.rates):.0f})"
        load = "" if row.load is None else f"{row.load:.1f}"
        print(f"| {name} | {differ} of {len(expected)} | {' | '.join(scores)} | {rates or ''} | {load} |")
    if references:
        print(f"\n{bleu.get_signature()} · {chrf.get_signature()}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model directory")
    parser.add_argument("source", help="file of lines to translate")
    parser.add_argument("--references", help="file of their translations")
    parser.add_argument("--packages", type=Path, required=True, help="folder of npm packages with the page's programs")
    parser.add_argument("--browser", help="Chromium's program (default: chromium)")
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--turns", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
