"""Markup carried through a translation: nothing lost, nothing twice, pairs around what their words became."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.extras.inspection.conftest import model, tokenizer  # noqa: F401
from vanilla_transformer.extras.inspection import AlignmentHeads
from vanilla_transformer.extras.inspection.markup import MARKUP, UNIT, MarkedLine, MarkupTranslator, insert
from vanilla_transformer.translation import LineTranslator

HEADS = AlignmentHeads(((1, 0), (2, 2)), "output")


def carried(line: str, text: str, links: str) -> str:
    """The translation with markup, where the units of text and line look at each other by `source-target` links."""
    marked = MarkedLine.from_line(line)
    sources, targets = ([match.span() for match in re.finditer(UNIT, one)] for one in (marked.plain, text))
    weights = torch.zeros(len(targets), len(sources))
    for link in links.split():
        source, target = map(int, link.split("-"))
        weights[target, source] = 1
    return insert(marked, sources, text, weights)


@pytest.mark.parametrize(
    ("line", "text", "links", "expected"),
    [
        ("<b>Hello</b>, world!", "Hallo, Welt!", "0-0 1-1 2-2 3-3", "<b>Hallo</b>, Welt!"),
        ("a <b>red</b> house", "une maison rouge", "0-0 1-2 2-1", "une maison <b>rouge</b>"),
        ("Hello {name}, welcome", "Hallo, willkommen", "0-0 1-1 2-2", "Hallo {name}, willkommen"),
        ("{n} files were found", "gefunden wurden Dateien", "0-2 1-1 2-0", "{n} gefunden wurden Dateien"),
        (
            "see <a href='x'>the {n} pages</a>.",
            "siehe die Seiten.",
            "0-0 1-1 2-2 3-3",
            "siehe <a href='x'>die {n} Seiten</a>.",
        ),
        ("one<br/>two", "eins zwei", "0-0 1-1", "eins <br/>zwei"),
        ("<b><i>so</i> it</b> is", "so ist es", "0-0 1-2 2-1", "<b><i>so</i> ist es</b>"),
        ("un<b>believ</b>able!", "unglaublich!", "0-0 1-1", "<b>unglaublich</b>!"),
        ("an <b>end", "ein Ende", "0-0 1-1", "ein <b>Ende"),
        ("</i> a <b> b </i> c", "x y z", "0-0 1-1 2-2", "</i> x <b> y </i> z"),
        ("one <b></b> two", "eins zwei", "0-0 1-1", "eins <b></b> zwei"),
        ("<p>a <i>b c</i></p>", "A B C", "0-0 1-2", "<p>A B <i>C</i></p>"),
        ("<br/>", "", "", "<br/>"),
        ("{a} {b}", "", "", "{a} {b}"),
        ("5 < 6 and {x", "5 < 6 und {x", "0-0", "5 < 6 und {x"),
        ("100% sure, %s", "ganz sicher,", "0-0 1-0 2-1 3-2", "ganz sicher, %s"),
    ],
)
def test_markup_stands_where_its_words_went(line, text, links, expected):
    assert carried(line, text, links) == expected


def test_a_word_far_away_does_not_tear_a_pair_open():
    links = "0-0 1-1 2-2 3-3 3-6 4-4 5-5"
    assert carried("a b <u>c d</u> e f", "A B C D E F G", links) == "A B <u>C D</u> E F G"


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("Hello {name}, welcome", "Hello, welcome"),
        ("hello {name} , welcome <br/> .", "hello , welcome ."),
        ("{name}, welcome", ", welcome"),
        ("it {verb} .", "it ."),
    ],
)
def test_a_space_before_a_mark_goes_only_where_it_was_the_markups(line, plain):
    assert MarkedLine.from_line(line).plain == plain


def test_markup_without_a_majority_goes_around_the_most_attentive_unit():
    marked = MarkedLine.from_line("a <b>b</b> c")
    spans = [(0, 1), (2, 3), (4, 5)]
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.35, 0.4, 0.25]])
    assert insert(marked, spans, "X Y", weights) == "X <b>Y</b>"
    weights[:, 1] = 0.1
    assert insert(marked, spans, "X Y", weights) == "X <b></b> Y"


words = st.lists(st.sampled_from(["so", "x", ",", "ä́", "日本", "don't", "."]), max_size=6).map(" ".join)


@st.composite
def marked_lines(draw):
    """Lines of words with tags, nested or not, and placeholders, each of which is there once."""
    parts = []
    for number in range(draw(st.integers(0, 7))):
        name = draw(st.sampled_from(["b", "i"]))
        forms = f"<{name} n='{number}'>", f"</{name}>", f"{{p{number}}}", f"<br n='{number}'/>", f"${{v{number}}}"
        parts += [
            draw(words),
            draw(st.sampled_from(["", " "])),
            draw(st.sampled_from(forms)),
            draw(st.sampled_from(["", " "])),
        ]
    return "".join([*parts, draw(words)])


def well_formed(text: str) -> bool:
    """Returns True if each closing tag closes the last open one."""
    stack = []
    for tag in re.finditer(r"<(/?)(\w+)[^>]*?(/?)>", text):
        if tag[1]:
            if not stack or stack.pop() != tag[2]:
                return False
        elif not tag[3]:
            stack.append(tag[2])
    return not stack


@settings(max_examples=300, deadline=None, derandomize=True)
@given(marked_lines(), words, st.integers(0, 2**31))
def test_inserted_markup_keeps_the_text_and_each_mark_once(line, text, seed):
    marked = MarkedLine.from_line(line)
    assert not MARKUP.search(marked.plain)
    assert "".join(marked.plain.split()) == "".join(MARKUP.sub("", line).split())
    sources, targets = ([match.span() for match in re.finditer(UNIT, one)] for one in (marked.plain, text))
    draw = torch.Generator().manual_seed(seed)
    weights = torch.rand(len(targets), len(sources), generator=draw).pow(8)
    written = insert(marked, sources, text, weights / weights.sum(1, keepdim=True).clamp(min=1e-9))
    assert sorted(MARKUP.findall(written)) == sorted(MARKUP.findall(line))
    assert "".join(MARKUP.sub("", written).split()) == "".join(text.split())
    if well_formed(line):
        assert well_formed(written)
    # Words are never glued together.
    assert re.findall(UNIT, MARKUP.sub(" ", written)) == re.findall(UNIT, text)
    for first, second in re.findall(r"(\w+) +(\w+)", text):
        assert f"{first}{second}" in text or f"{first}{second}" not in MARKUP.sub("", written)


def test_markup_does_not_change_the_translated_text(model, tokenizer):  # noqa: F811
    plain = LineTranslator.from_model(
        model, tokenizer, num_beams=2, num_return_sequences=2, max_length_beyond_source=2
    )
    keeping = MarkupTranslator(**vars(plain), heads=HEADS)
    lines = ["A dog runs.", "A <b>dog</b> runs {where}.", "", "<br/>", "Two <i>men</i>"]
    found = keeping.translate(lines)
    bare = plain.translate(["A dog runs.", "A dog runs.", "", "", "Two men"])
    for line, one, expected in zip(lines, found, bare, strict=True):
        for hypothesis, other in zip(one.hypotheses, expected.hypotheses, strict=True):
            markup = MARKUP.findall(line)
            assert all(hypothesis.text.count(item) == 1 for item in markup)
            rest = hypothesis.text
            for item in markup:
                rest = rest.replace(item, "")
            assert "".join(rest.split()) == "".join(other.text.split())
            assert hypothesis.score == other.score and (markup or hypothesis == other)
