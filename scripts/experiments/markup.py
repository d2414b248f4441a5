"""Measures markup in translations: whether all of it is there once, and how often it lands where an aligner says.

    vanilla-transformer translate MODEL test.de --output plain.en --precision float32
    python -m scripts.experiments.markup MODEL --lines test.de --translations plain.en --links links
`links` has `i-j i-j` on each line, between the words of line and translation, separated by spaces, from another
aligner. A seed decides where each line gets markup: `<b>` and `</b>` around one to three words, and `{name}` between
two. The pair is right if it encloses just the words linked with its own; the placeholder is right if the word before
it is linked with the word that was before it, or the word after it with the word that was after it. The baseline puts
markup at the same relative position.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.experiments.alignment import Links, read_links
from scripts.experiments.runs import ExperimentError, cells, command
from vanilla_transformer.data.text_lines import read_lines
from vanilla_transformer.extras.inspection.markup import MARKUP, MarkupTranslator
from vanilla_transformer.translation import LineTranslator, load_model

ITEMS = ("<b>", "</b>", "{name}")
LONGEST = 3


@dataclass(frozen=True)
class Places:
    """Places of markup in a text, counted in words: the pair goes from `start` to `end`."""

    start: int
    end: int
    gap: int


@dataclass(frozen=True)
class Landing:
    """A comparison of a line's markup with its links.

    Attributes:
        shared: Words inside the pair that are linked with the pair's source words.
        inside: Words inside the pair.
        linked: Words that should be inside the pair.
        placeholder: True if `{name}` is next to a word linked with its neighbour, None if no neighbour is linked.
    """

    shared: int
    inside: int
    linked: int
    placeholder: bool | None


@dataclass(frozen=True)
class Case:
    """A line and its translation without markup, their links, and the places of markup in the line."""

    words: list[str]
    plain: str
    links: Links
    places: Places


def draw_places(draw: random.Random, words: Sequence[str]) -> Places | None:
    """Draws places in a line, the placeholder outside of the pair; None if there are too few words."""
    if len(words) < 2:
        return None
    gap = draw.randint(1, len(words) - 1)
    stretches = [
        (start, end)
        for start in range(len(words))
        for end in range(start + 1, min(start + LONGEST, len(words)) + 1)
        if not start < gap < end and all(any(map(str.isalpha, word)) for word in words[start:end])
    ]
    return Places(*draw.choice(stretches), gap) if stretches else None


def put(words: Sequence[str], places: Places) -> str:
    """Inserts markup into a line."""
    marked = list(words)
    marked[places.start] = f"<b>{marked[places.start]}"
    marked[places.end - 1] += "</b>"
    return " ".join([*marked[: places.gap], "{name}", *marked[places.gap :]])


def places_in(marked: str, plain: str) -> Places | None:
    """Finds the places of markup in a translation; None if its text differs from the plain translation."""
    opening, closing, at = (len(_letters(marked.partition(item)[0])) for item in ITEMS)
    if _letters(marked) != "".join(plain.split()):
        return None
    words = plain.split()
    ends = [len("".join(words[: number + 1])) for number in range(len(words))]
    start = sum(end <= opening for end in ends)
    end = sum(first < closing for first in [0, *ends[:-1]]) if opening < closing else start
    return Places(start, end, sum(end <= at for end in ends))


def _letters(marked: str) -> str:
    """Removes markup and spaces."""
    return "".join(MARKUP.sub("", marked).split())


def same_share(places: Places, words: int, translated: int) -> Places:
    """Returns the places at the same relative position in the translation."""
    start, end, gap = (round(place * translated / words) for place in (places.start, places.end, places.gap))
    return Places(start, end, gap)


def landing(source: Places, target: Places, links: Links) -> Landing:
    """Compares the places of markup with the links."""
    wanted = {j for i, j in links if source.start <= i < source.end}
    inside = set(range(target.start, target.end))
    before, behind = ({j for i, j in links if i == at} for at in (source.gap - 1, source.gap))
    placeholder = target.gap - 1 in before or target.gap in behind if before or behind else None
    return Landing(len(wanted & inside), len(inside), len(wanted), placeholder)


def summary(landings: Sequence[Landing]) -> list[str]:
    """Returns percentages: exact pairs, precision and recall of their words, and right placeholders."""
    of_pairs = [one for one in landings if one.linked]
    shared = sum(one.shared for one in of_pairs)
    exact = [one.shared == one.inside == one.linked for one in of_pairs]
    placeholders = [one.placeholder for one in landings if one.placeholder is not None]
    parts = (
        (sum(exact), len(exact)),
        (shared, sum(one.inside for one in of_pairs)),
        (shared, sum(one.linked for one in of_pairs)),
        (sum(placeholders), len(placeholders)),
    )
    return [f"{100 * part / max(1, whole):.1f}% of {whole:,}" for part, whole in parts]


def report(cases: Sequence[Case], marked: Sequence[str]) -> str:
    """Reports how much markup was kept, and a table of how much landed right."""
    kept = [sorted(MARKUP.findall(text)) == sorted(ITEMS) for text in marked]
    places = [places_in(text, case.plain) for case, text in zip(cases, marked, strict=True)]
    same = [(case, found) for case, found in zip(cases, places, strict=True) if found is not None]
    by_alignment = [landing(case.places, found, case.links) for case, found in same]
    by_share = [
        landing(case.places, same_share(case.places, len(case.words), len(case.plain.split())), case.links)
        for case, _ in same
    ]
    empty = sum(not one.inside for one in by_alignment)
    head = (
        "",
        "exactly the linked words",
        "precision of words",
        "recall of words",
        "placeholder beside a linked word",
    )
    return "\n".join(
        [
            f"{len(cases):,} lines; all markup once in {sum(kept):,}, the same words as without it in {len(same):,}, "
            f"the pair empty in {empty:,}.",
            "",
            cells(head),
            cells(["---"] * len(head)),
            cells(["by alignment", *summary(by_alignment)]),
            cells(["the same share of the way", *summary(by_share)]),
        ]
    )


def main(arguments: Sequence[str]) -> None:
    """Prints how much markup was kept, and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory or Hub id; its alignment heads have been chosen")
    parser.add_argument("--lines", type=Path, required=True)
    parser.add_argument("--translations", type=Path, required=True, help="the model's, of the lines without markup")
    parser.add_argument("--links", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    lines, plain = (list(read_lines(file)) for file in (options.lines, options.translations))
    # The file of links may be longer: an aligner is trained on more pairs than are tested.
    links = [read_links(line) for line, _ in zip(read_lines(options.links), lines, strict=False)]
    if not len(lines) == len(plain) == len(links):
        raise ExperimentError(
            f"{options.lines} has {len(lines)} lines; there are {len(plain)} translations and {len(links)} lines of "
            "links: they must match."
        )
    draw = random.Random(options.seed)
    cases = [
        Case(line.split(), translation, gold, places)
        for line, translation, gold in zip(lines, plain, links, strict=True)
        if (places := draw_places(draw, line.split())) is not None
    ]
    model, tokenizer = load_model(options.model, device="cpu")
    translator = MarkupTranslator.from_translator(LineTranslator.from_model(model, tokenizer), None)
    found = translator.translate([put(case.words, case.places) for case in cases])
    print(report(cases, [translation.hypotheses[0].text for translation in found]))


if __name__ == "__main__":
    with command("scripts.experiments.markup"):
        main(sys.argv[1:])
