"""The measurement of a model in the browser: what differs is counted, and what the page says is read."""

from contextlib import contextmanager
from pathlib import Path

from refusals import refused

from scripts.benchmarks import web


class Page:
    """A page on which everything is translated into the same."""

    def __init__(self, translation: str, status: str) -> None:
        self.translation, self.status, self.source = translation, status, ""

    def fill(self, selector: str, text: str) -> None:
        self.source = text

    def text_content(self, selector: str) -> str:
        count = len(self.source.split("\n"))
        return {"#status": self.status, "#target": "\n".join([self.translation] * count)}[selector]

    def select_option(self, selector: str, value: str) -> None: ...

    def click(self, selector: str) -> None: ...

    def wait_for_selector(self, selector: str, timeout: int) -> None: ...

    def close(self) -> None: ...


def test_lines_that_differ_and_the_pages_own_clock_are_in_the_table(tmp_path, argv, monkeypatch, capsys):
    (tmp_path / "source").write_text("a\nb\n")
    (tmp_path / "target").write_text("one\ntwo\n")

    def export(model: None, tokenizer: None, folder: Path, packages: Path) -> None:
        for name in ("translate.onnx", "translate_int8.onnx", "vendor/LICENSE", "index.html"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(bytes(100_000))

    @contextmanager
    def page(folder: Path, program: None):
        yield lambda: Page("one", "Stopped. 30 tokens in 0.50 s.")

    monkeypatch.setattr(web, "load_model", lambda *args, **kwargs: (None, None))
    monkeypatch.setattr(web, "export_web", export)
    monkeypatch.setattr(web, "_torch", lambda *args: web.Row(["one", "two"], [5.0]))
    monkeypatch.setattr(web, "_node", lambda folder, packages, lines, dtype: web.Row(["one", "two"]))
    monkeypatch.setattr(web, "serve_page", page)
    options = ["--references", str(tmp_path / "target"), "--packages", "npm", "--lines", "2", "--turns", "1"]
    argv("model", tmp_path / "source", *options)
    web.main()
    rows = {
        row[1].strip(): row for row in (line.split("|") for line in capsys.readouterr().out.splitlines()) if row[1:]
    }
    assert rows["float32"][2].strip() == "0.1" and rows["programs"][2].strip() == "0.0"
    assert [rows[name][2].strip() for name in ("torch, float32", "node, q8", "Chromium, q8")] == [
        "0 of 2",
        "0 of 2",
        "1 of 2",
    ]
    assert rows["Chromium, fp32"][5].strip() == "60 (60 to 60)"


def test_an_error_of_the_page_ends_the_measurement():
    with refused(SystemExit, "It failed: no memory"):
        web._translate(Page("", "It failed: no memory."), ["a"])
