"""Progress: a bar for who looks on, little for a log, and a total where it can be known."""

import gzip
import io
import re

from faults import standard_streams
from hypothesis import assume, given, settings, strategies as st

from vanilla_transformer.cli.files import count_lines
from vanilla_transformer.data.text_lines import read_lines
from vanilla_transformer.progress import progress_bar


@settings(max_examples=25, deadline=None)
@given(text=st.text(st.sampled_from("a\n\r\u2028"), max_size=12).map(str.encode))
def test_lines_are_counted_as_they_are_read(tmp_path_factory, text):
    assume(b"\n" in text or text.count(b"\r") < 2)  # Such text is rejected.
    directory = tmp_path_factory.mktemp("text")
    (directory / "text").write_bytes(text)
    (directory / "text.gz").write_bytes(gzip.compress(text, 1))
    for path in (directory / "text", directory / "text.gz"):
        assert count_lines(path) == len(list(read_lines(path)))


def test_lines_that_cannot_be_counted_have_no_number(tmp_path):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"line\n" * 10_000)[:-10])
    (tmp_path / "plain.gz").write_bytes(b"line\n")
    for name in ("cut.gz", "plain.gz", "none"):
        assert count_lines(tmp_path / name) is None


def test_a_log_gets_nothing_of_short_work(capsys):
    with progress_bar("lines", total=40) as bar:
        bar.update(40)
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar():
    terminal = Terminal()
    settings = {"total": 40, "done": 10}
    with standard_streams(stderr=terminal), progress_bar("lines", **settings) as bar:
        bar.update(30)
    last = terminal.getvalue().split("\r")[-1]
    assert re.search(r"100%.* 40/40 ", last)
