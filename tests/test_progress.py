"""Progress: a bar for who looks on, lines for a log, and a total where it can be known."""

import gzip
import io
import itertools
import re

from faults import standard_streams
from hypothesis import given, settings, strategies as st

from vanilla_transformer.cli.files import count_lines
from vanilla_transformer.data.text_lines import read_lines
from vanilla_transformer.progress import ProgressLines, progress_bar


@settings(max_examples=25, deadline=None)
@given(text=st.text(st.sampled_from("a\n\r\u2028"), max_size=12).map(str.encode))
def test_lines_are_counted_as_they_are_read(tmp_path_factory, text):
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


def test_log_gets_few_lines_with_rate_and_remaining_time(capsys):
    clock = itertools.count(0)  # A second passes with each look at it.
    with ProgressLines(total=101_000, initial=1000, unit=" lines", smoothing=0) as lines:
        lines._time = lambda: float(next(clock))
        lines.start_t = lines.last_print_t = 0
        for _ in range(10_000):
            lines.update(10)
    printed = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"1\d\d\d of 101000 lines, +\S+ lines/s, 00:1\d elapsed, \S+ left", printed[0])
    assert printed[-1].startswith("101000 of 101000 lines, ") and 30 < len(printed) < 100


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar():
    terminal = Terminal()
    settings = {"total": lambda: 40, "done": 10}
    with standard_streams(stderr=terminal), progress_bar("lines", **settings) as bar:
        bar.update(30)
    last = terminal.getvalue().split("\r")[-1]
    assert re.search(r"100%.* 40/40 ", last)
