"""Markup through a translation, measured."""

import random
import re
import shutil

import pytest
from refusals import refused

from scripts.experiments import markup
from scripts.experiments.markup import Case, Landing, Places
from scripts.experiments.runs import ExperimentError
from tests.extras.inspection.conftest import model, model_directory, tokenizer  # noqa: F401
from vanilla_transformer.cli import main as command_line
from vanilla_transformer.extras.inspection.markup import MarkedLine

PRECISION = ["--precision", "float32", "--device", "cpu"]


def test_markup_is_put_where_it_can_be_taken_out_again():
    draw = random.Random(0)
    for _ in range(200):
        words = [draw.choice(["ein", "hund", "läuft", ",", "."]) for _ in range(draw.randint(0, 8))]
        places = markup.draw_places(draw, words)
        if places is None:
            assert len(words) < 2 or not any(map(str.isalpha, words))
            continue
        marked = markup.put(words, places)
        assert sorted(markup.MARKUP.findall(marked)) == sorted(markup.ITEMS)
        assert MarkedLine.from_line(marked).plain == " ".join(words)
        assert markup.places_in(marked, " ".join(words)) == places
        assert not places.start < places.gap < places.end and 0 < places.gap < len(words)
        assert all(word.isalpha() for word in words[places.start : places.end])


@pytest.mark.parametrize(
    ("marked", "places"),
    [
        ("a <b>dog</b> {name} runs.", Places(1, 2, 2)),
        ("<b>a dog</b> runs. {name}", Places(0, 2, 3)),
        ("a <b></b> dog {name} runs.", Places(1, 1, 2)),
        ("a dog <b>run</b>s. {name}", Places(2, 3, 3)),
        ("a <b>cat</b> {name} runs.", None),
    ],
)
def test_places_are_counted_in_words_of_the_translation(marked, places):
    assert markup.places_in(marked, "a dog runs.") == places


def test_places_of_markup_are_compared_with_the_links():
    links = {(0, 2), (1, 0), (1, 1)}
    source = Places(1, 2, 1)
    assert markup.landing(source, Places(0, 2, 3), links) == Landing(2, 2, 2, True)
    assert markup.landing(source, Places(1, 3, 2), links) == Landing(1, 2, 2, False)
    assert markup.landing(source, Places(0, 0, 0), links) == Landing(0, 0, 2, True)
    assert markup.landing(Places(3, 4, 4), Places(0, 1, 1), links) == Landing(0, 1, 0, None)
    landings = [Landing(2, 2, 2, True), Landing(1, 2, 2, False), Landing(0, 1, 0, None)]
    assert markup.summary(landings) == ["50.0% of 2", "75.0% of 4", "75.0% of 4", "50.0% of 2"]


def test_the_report_counts_what_is_lost_and_what_is_translated_otherwise():
    case = Case(["ein", "hund"], "a dog", {(0, 0), (1, 1)}, Places(0, 1, 1))
    text = markup.report([case] * 3, ["<b>a</b> {name} dog", "<b>a</b> dog", "{name} <b>a</b> cat"])
    assert text.startswith("3 lines; all markup once in 2, the same words as without it in 2, the pair empty in 0.")


def test_a_model_is_measured(model_directory, tmp_path, capsys):  # noqa: F811
    directory = str(shutil.copytree(model_directory, tmp_path / "model"))
    lines = ["ein hund läuft im park .", "zwei männer warten ."] * 2
    (tmp_path / "de").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "links").write_text("0-0 1-1 2-2\n" * 5)
    command_line(["translate", directory, str(tmp_path / "de"), "--output", str(tmp_path / "en"), *PRECISION])
    command_line(["align", directory, str(tmp_path / "de"), str(tmp_path / "de"), "--choose-heads"])
    capsys.readouterr()
    words = [directory]
    for name, file in (("lines", "de"), ("translations", "en"), ("links", "links")):
        words += [f"--{name}", str(tmp_path / file)]
    markup.main(words)
    told, *table = capsys.readouterr().out.splitlines()
    assert told.startswith("4 lines; all markup once in 4, the same words as without it in 4,")
    assert [len(re.findall(r"\d% of \d", row)) for row in table[3:]] == [4, 4]
    (tmp_path / "links").write_text("0-0\n")
    with refused(ExperimentError, "match"):
        markup.main(words)
