"""Progress: a bar for who looks on, lines for a log, and a total where it can be known."""

import gzip
import io
import itertools
import re

import pytest
from faults import standard_streams
from hypothesis import given, settings
from hypothesis import strategies as st

from vanilla_transformer.cli.streams import count_lines
from vanilla_transformer.data.text_lines import read_lines
from vanilla_transformer.progress import ProgressLines, progress_bar


@settings(max_examples=25, deadline=None)
@given(text=st.text(st.sampled_from("a\n\r\u2028"), max_size=12).map(str.encode), before=st.integers(0, 12))
def test_lines_are_counted_as_they_are_read(tmp_path_factory, text, before):
    directory = tmp_path_factory.mktemp("text")
    # Files are read a mebibyte at a time: each of its ends falls between two bytes of the text.
    for content in (text, b"a" * ((1 << 20) - before) + text):
        (directory / "text").write_bytes(content)
        (directory / "text.gz").write_bytes(gzip.compress(content, 1))
        for path in (directory / "text", directory / "text.gz"):
            assert count_lines(path) == len(list(read_lines(path)))
        with open(directory / "text") as file, standard_streams(stdin=file):
            assert count_lines(None) == len(list(read_lines(directory / "text")))
            # Counting takes nothing away from who reads.
            assert file.buffer.read() == content


def test_lines_that_cannot_be_counted_have_no_number(tmp_path):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"line\n" * 10_000)[:-10])
    (tmp_path / "plain.gz").write_bytes(b"line\n")
    for name in ("cut.gz", "plain.gz", "none"):
        assert count_lines(tmp_path / name) is None


def test_log_gets_few_lines_with_rate_and_remaining_time(capsys):
    clock = itertools.count(0)  # A second passes with each look at it.
    lines = ProgressLines("lines", done=1000, clock=lambda: float(next(clock)))
    lines.total = 101_000
    for _ in range(10_000):
        lines.update(10)
    lines.close()
    printed = capsys.readouterr().err.splitlines()
    assert printed[0] == "1,100 of 101,000 lines, 10.0 lines/s, 00:10 elapsed, 2:46:30 left"
    assert printed[-1] == "101,000 of 101,000 lines, 10.0 lines/s, 2:46:41 elapsed"
    assert 30 < len(printed) < 80


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("in_the_way", [False, True])
def test_a_terminal_gets_a_bar_unless_it_is_in_the_way(in_the_way):
    terminal = Terminal()
    settings = {"total": lambda: 40, "done": 10, "in_the_way": in_the_way}
    with standard_streams(stderr=terminal), progress_bar("lines", **settings) as bar:
        bar.update(30)
    last = terminal.getvalue().split("\r")[-1]
    assert (re.search(r"100%.* 40/40 ", last) is None) == in_the_way
    assert not in_the_way or terminal.getvalue() == ""
