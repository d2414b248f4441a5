"""Markup in translations: taken out of each line, and put back into its translation by the alignment.

The model never sees the markup, so none of it can be lost, changed or written twice. Gaps are counted as the units
before them: gap 0 is before the first.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from vanilla_transformer.extras.inspection.aligning_translator import heads_of, with_attention
from vanilla_transformer.extras.inspection.alignment import Aligner, AlignmentHeads, Side, merge
from vanilla_transformer.translation import Hypothesis, LineTranslator, Translation

# Tags and comments of HTML and XML, {name}, {{name}}, ${name}, %(name)s, %s, %d and %1$s.
MARKUP = re.compile(
    r"<!--.*?-->|</?[A-Za-z][^<>]*>|\{\{[^{}]*\}\}|\$?\{[^{}]*\}|%\([^()\s]*\)[a-z]|%(?:\d+\$)?[sd](?!\w)"
)
# Words and punctuation marks: `<b>word</b>, more` does not take in the comma.
UNIT = r"\w+(?:['’]\w+)*|[^\w\s]"
_CLOSES_UP = tuple(",.;:!?)]")
# HTML tags that have no closing tag.
_VOID = {"area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


@dataclass(frozen=True)
class Item:
    """A piece of markup.

    Attributes:
        text: The markup as it stands in the line.
        at: The number of characters of the plain line before it.
        space_before: True if a space stood before it.
        space_after: True if a space stood after it.
    """

    text: str
    at: int
    space_before: bool
    space_after: bool

    @property
    def name(self) -> str | None:
        """The name of an opening or closing tag, None for anything else."""
        tag = re.fullmatch(r"</?([A-Za-z][^\s/>]*)[^<>]*>", self.text)
        return None if tag is None or self.text.endswith("/>") or tag[1].lower() in _VOID else tag[1]

    @property
    def closes(self) -> bool:
        """True for a closing tag."""
        return self.text.startswith("</")


@dataclass
class Node:
    """A single item, or a pair of tags with its contents.

    Attributes:
        start: The gap of the source at which it begins.
        end: The gap at which it ends; equal to `start` for a single item.
    """

    opening: Item | None
    start: int
    end: int
    closing: Item | None = None
    children: "list[Node]" = field(default_factory=list)


@dataclass(frozen=True)
class MarkedLine:
    """A line taken apart: the text to translate, and its markup in order."""

    plain: str
    items: tuple[Item, ...]

    @classmethod
    def from_line(cls, line: str) -> "MarkedLine":
        """Takes the markup out, with the spaces that are no longer needed."""
        plain, done = "", 0
        items: list[Item] = []
        for match in MARKUP.finditer(line):
            plain, items = _joined(plain, items, line[done : match.start()])
            before, after = line[: match.start()], line[match.end() :]
            items.append(Item(match[0], len(plain), before[-1:].isspace(), after[:1].isspace()))
            done = match.end()
        plain, items = _joined(plain, items, line[done:])
        return cls(plain, tuple(items))

    def root(self, spans: Sequence[tuple[int, int]]) -> Node:
        """Returns the markup as a tree over the units of the plain text; an unpaired tag is a single item."""
        stack = [Node(None, 0, len(spans))]
        for item in self.items:
            begun = sum(start < item.at for start, _ in spans)
            ended = sum(end <= item.at for _, end in spans)
            if item.name is not None and item.closes:
                partner = next((n for n in range(len(stack) - 1, 0, -1) if _name(stack[n]) == item.name), None)
                if partner is None:
                    stack[-1].children.append(Node(item, begun, begun))
                    continue
                while len(stack) - 1 > partner:
                    _without_partner(stack)
                stack[-1].closing, stack[-1].end = item, max(begun, stack[-1].start)
                stack.pop()
            else:
                is_tag = item.name is not None
                node = Node(item, ended if is_tag else begun, ended if is_tag else begun)
                stack[-1].children.append(node)
                if is_tag:
                    stack.append(node)
        while len(stack) > 1:
            _without_partner(stack)
        return stack[0]


def _joined(plain: str, items: list[Item], text: str) -> tuple[str, list[Item]]:
    """Appends the text after an item, without a second space, or with one if only the item kept two words apart."""
    if items and (not plain or plain[-1].isspace()):
        # "Hello {name}, welcome" must lose the space before its comma; "hello {name} , welcome" keeps its own.
        closes_up, text = text.startswith(_CLOSES_UP), text.lstrip()
        if closes_up:
            plain = plain.rstrip()
            items = [replace(item, at=min(item.at, len(plain))) for item in items]
    elif items and items[-1].name is None and plain[-1].isalnum() and text[:1].isalnum():
        text = f" {text}"
    return plain + text, items


def _name(node: Node) -> str | None:
    return None if node.opening is None else node.opening.name


def _without_partner(stack: list[Node]) -> None:
    """Makes an unclosed opening tag a single item, with the text after it beside it."""
    node = stack.pop()
    stack[-1].children += node.children
    node.children, node.end = [], node.start


def insert(line: MarkedLine, source_spans: Sequence[tuple[int, int]], text: str, weights_TS: torch.Tensor) -> str:
    """Puts the markup of a line into its translation.

    A pair of tags goes around the stretch of the target that attends most to the units it enclosed, and a single item
    between the units that attend to its neighbours; nothing leaves the pair that enclosed it.

    Args:
        source_spans: The units of the plain line.
        text: The translation of the plain line.
        weights_TS: The attention of each unit of the translation to each unit of the line.
    """
    spans = [match.span() for match in re.finditer(UNIT, text)]
    writer = _Writer(text, spans)
    _place(line.root(source_spans), 0, len(spans), weights_TS.tolist(), writer)
    return writer.finish()


def _place(parent: Node, low: int, high: int, weights: list[list[float]], writer: "_Writer") -> None:
    """Writes the target from one gap to another with the contents of a node."""
    free, places = [(low, high)], []
    pairs = [(order, node) for order, node in enumerate(parent.children) if node.closing is not None]
    # Pairs of the highest score are placed first, the others beside them.
    for order, node in sorted(pairs, key=lambda pair: -_best_stretch(pair[1], free, weights)[0]):
        score, start, end = _best_stretch(node, free, weights)
        if node.start < node.end and (node.start, node.end) == (parent.start, parent.end):
            start, end = low, high  # The pair encloses all of its parent.
        elif score <= 0:
            at = _best_gap(parent, node.start, low, high, _gaps(free), weights)
            start, end = _best_unit(node, free, weights) or (at, at)
        free = [
            part
            for first, last in free
            for part in (((first, start), (end, last)) if first <= start and end <= last else ((first, last),))
        ]
        places.append((start, end, order, node))
    for order, node in enumerate(parent.children):
        if node.closing is None:
            gap = _best_gap(parent, node.start, low, high, _gaps(free), weights)
            places.append((gap, gap, order, node))
    done = low
    for start, end, _, node in sorted(places, key=lambda place: place[:3]):
        writer.units(done, start)
        assert node.opening is not None
        if node.closing is None:
            writer.item(node.opening, start)
        else:
            writer.open(node.opening, start)
            _place(node, start, end, weights, writer)
            writer.close(node.closing, start, end)
        done = end
    writer.units(done, high)


def _gaps(free: Sequence[tuple[int, int]]) -> list[int]:
    return sorted({gap for first, last in free for gap in range(first, last + 1)})


def _best_stretch(node: Node, free: Sequence[tuple[int, int]], weights: list[list[float]]) -> tuple[float, int, int]:
    """Returns score, start and end of the free stretch of units that attend most to the node, each by over half."""
    best = (0.0, 0, 0)
    for first, last in free:
        score, start = 0.0, first
        for unit in range(first, last):
            if score < 0:
                score, start = 0.0, unit
            score += sum(weights[unit][node.start : node.end]) - 0.5
            best = max(best, (score, start, unit + 1), key=lambda one: (one[0], one[2] - one[1]))
    return best


def _best_unit(node: Node, free: Sequence[tuple[int, int]], weights: list[list[float]]) -> tuple[int, int] | None:
    """Returns the free unit that attends most to the node's units, if by more than uniform attention would."""
    units = [unit for first, last in free for unit in range(first, last)]
    if not units or node.start == node.end:
        return None
    best = max(units, key=lambda unit: sum(weights[unit][node.start : node.end]))
    share = sum(weights[best][node.start : node.end]) / max(sum(weights[best]), 1e-9)
    return (best, best + 1) if share > (node.end - node.start) / len(weights[best]) else None


def _best_gap(parent: Node, at: int, low: int, high: int, gaps: Sequence[int], weights: list[list[float]]) -> int:
    """Returns the gap whose neighbours attend to those of a source gap; ends of the enclosing pair match its ends."""

    def score(gap: int) -> tuple[float, float]:
        after = weights[gap][at] if gap < high and at < parent.end else float(gap == high and at == parent.end)
        before = (
            weights[gap - 1][at - 1] if gap > low and at > parent.start else float(gap == low and at == parent.start)
        )
        share = (at - parent.start) / max(1, parent.end - parent.start)
        return after + before, -abs(gap - low - share * (high - low))

    return max(gaps, key=score)


class _Writer:
    """Joins units and markup with the spaces between them."""

    def __init__(self, text: str, spans: Sequence[tuple[int, int]]) -> None:
        self._text, self._spans = text, spans
        self._written: list[str] = [text[: spans[0][0]]] if spans else []
        self._wants_space = False
        self._space_of = 0  # The gap whose space is written.

    def units(self, start: int, end: int) -> None:
        for unit in range(start, end):
            self._space(self._gap(unit))
            self._written.append(self._text[slice(*self._spans[unit])])
            self._space_of = unit

    def open(self, item: Item, gap: int) -> None:
        self._space(self._gap(gap))
        self._space_of = gap
        self._written.append(item.text)

    def close(self, item: Item, start: int, end: int) -> None:
        self._written.append(item.text)
        self._wants_space |= start == end and bool(self._gap(end, written=True))

    def item(self, item: Item, gap: int) -> None:
        between = self._gap(gap)
        is_tag = item.text.startswith("<")
        glued = is_tag and not (item.space_before and item.space_after)
        self._space(" " if item.space_before or (between and not (glued and item.space_after)) else "")
        self._space_of = gap
        self._written.append(item.text)
        self._wants_space = item.space_after or bool(between and not glued)

    def finish(self) -> str:
        end = self._text[self._spans[-1][1] :] if self._spans else self._text
        return "".join(self._written) + end

    def _gap(self, gap: int, *, written: bool = False) -> str:
        """Returns the space before a unit, or nothing if it is already written."""
        if not 0 < gap < len(self._spans) or (gap == self._space_of and not written):
            return ""
        return self._text[self._spans[gap - 1][1] : self._spans[gap][0]]

    def _space(self, space: str) -> None:
        space = space or (" " if self._wants_space else "")
        if space and self._written and not self._written[-1][-1:].isspace():
            self._written.append(space)
        self._wants_space = False


@dataclass(frozen=True)
class MarkupTranslator(LineTranslator):
    """Translates lines without their markup, and puts the markup into the translations.

    Attributes:
        heads: The heads from which alignments are read.
    """

    heads: AlignmentHeads

    @classmethod
    def from_translator(cls, translator: LineTranslator, heads: str | None) -> "MarkupTranslator":
        """Takes another translator's model and settings.

        Args:
            heads: Text for `AlignmentHeads.from_text` (default: the heads chosen for the model).

        Raises:
            AlignmentError: The model does not have these heads, or none were chosen.
        """
        return cls(**vars(translator), heads=heads_of(translator, heads))

    def translate(self, lines: list[str], progress: Callable[[int], object] | None = None) -> list[Translation]:
        """Translates like any `LineTranslator`; lines without markup are translated unchanged."""
        marked = [MarkedLine.from_line(line) for line in lines]
        translations = super().translate([one.plain for one in marked], progress)
        some = [index for index, one in enumerate(marked) if one.items]
        aligner = Aligner(self.model, self.tokenizer)
        lines_of = iter([marked[index] for index in some for _ in translations[index].hypotheses])
        changed = with_attention(
            aligner,
            self.heads,
            [marked[index].plain for index in some],
            [translations[index] for index in some],
            lambda *pair: _with_markup(aligner, next(lines_of), *pair),
        )
        for index, translation in zip(some, changed, strict=True):
            translations[index] = translation
        return translations


def _with_markup(
    aligner: Aligner, line: MarkedLine, hypothesis: Hypothesis, source: Side, target: Side, weights_TS: torch.Tensor
) -> Hypothesis:
    sources, targets = aligner.source_units(source, UNIT), aligner.target_units(target, UNIT)
    return replace(hypothesis, text=insert(line, sources.spans, target.text, merge(weights_TS, sources, targets)))
