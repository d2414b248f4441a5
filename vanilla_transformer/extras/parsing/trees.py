"""Section 6.3: constituency trees as a target language: words in, a tree written out in one line.

A tree becomes brackets that name their constituent at both ends, as in Vinyals et al. 2015: `(S (NP XX )NP (VP XX )VP
. )S`. `XX` stands for a word. Deviation: punctuation keeps its tag, because the usual score excludes it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vanilla_transformer.data.columns import TextForm, Wanted
from vanilla_transformer.data.tables import RowTable
from vanilla_transformer.data.text_lines import CorpusError, decoded_lines

WORD = "XX"
# The tags that evalb's COLLINS.prm excludes from its counts.
PUNCTUATION = frozenset([",", ":", "``", "''", "."])
_EMPTY = "-NONE-"
_TOKENS = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True)
class Tree:
    """A constituent with its parts, or, without parts, a word with its tag."""

    label: str
    children: tuple["Tree", ...] = ()
    word: str | None = None

    def leaves(self) -> Iterator["Tree"]:
        """Yield the words, from left to right."""
        if self.word is not None:
            yield self
        for child in self.children:
            yield from child.leaves()


def read_trees(path: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of a sentence and its tree in one line, from a file of bracketed trees (`.mrg`) of any layout.

    Traces (`-NONE-`) are removed with the constituents that hold nothing else, functions and indices are cut off
    labels (`NP-SBJ-1` is `NP`), a root without a name (or `TOP`, `ROOT`, `S1`) is removed; chains of one child stay.

    Raises:
        CorpusError: A bracket stays open or is closed too often, or a constituent has no name; names the line.
    """
    for tree in _parsed(path):
        plain = _without_traces(tree)
        if plain is not None:
            yield " ".join(leaf.word or "" for leaf in plain.leaves()), linearize(plain)


def read_mrg(path: str, wanted: Wanted, form: TextForm) -> RowTable:
    """Open a file of bracketed trees as sentences and their trees, one line each (section 6.3)."""
    if not form.parallel:
        raise CorpusError(f"{path} holds pairs of a sentence and its tree, not {form.unit}")
    if any(wanted):
        raise CorpusError(f"{path} holds trees and has no named columns: leave the names out")
    return RowTable(enumerate(read_trees(path), start=1))


def linearize(tree: Tree) -> str:
    """Write a tree as a line of brackets and words."""
    if tree.word is not None:
        return tree.label if tree.label in PUNCTUATION else WORD
    return " ".join((f"({tree.label}", *map(linearize, tree.children), f"){tree.label}"))


def restore(line: str, leaves: Sequence[Tree]) -> tuple[Tree, int]:
    """Return the tree that a line writes over given words, and the number of bracket repairs it needed.

    A closing bracket closes the constituent it names and everything open inside it; one that names nothing open is
    dropped. Constituents open at the end are closed. Surplus words are dropped, missing ones attach to the root;
    brackets around nothing are dropped. Several trees side by side get a root of their own, without a name.

    Args:
        line: The line written by a model.
        leaves: The words with their tags, in order.
    """
    repairs, used = 0, 0
    stack: list[tuple[str, list[Tree]]] = [("", [])]

    def close() -> None:
        label, children = stack.pop()
        if children:
            stack[-1][1].append(Tree(label, tuple(children)))

    for token in line.split():
        if token.startswith("(") and len(token) > 1:
            stack.append((token[1:], []))
        elif token.startswith(")") and len(token) > 1:
            if token[1:] not in [label for label, _ in stack[1:]]:
                repairs += 1
                continue
            while stack[-1][0] != token[1:]:
                repairs += 1
                close()
            repairs += not stack[-1][1]
            close()
        elif used < len(leaves):
            stack[-1][1].append(leaves[used])
            used += 1
        else:
            repairs += 1
    repairs += len(stack) - 1 + len(leaves) - used
    while len(stack) > 1:
        close()
    children = stack[0][1]
    if len(children) == 1 and children[0].word is None:
        root = children[0]
        return Tree(root.label, (*root.children, *leaves[used:])), repairs
    return Tree("", (*children, *leaves[used:])), repairs + (len(children) != 1)


def leaves_of(line: str) -> list[Tree]:
    """Return the words and punctuation of a written tree, each with its tag."""
    return [Tree(token, word=token) for token in line.split() if token[0] not in "()"]


def _parsed(path: str) -> Iterator[Tree]:
    stack: list[tuple[int, list[str | Tree]]] = []
    number = 0
    for number, line in enumerate(decoded_lines(path), start=1):
        for token in _TOKENS.findall(line):
            if token == "(":
                stack.append((number, []))
            elif not stack:
                raise CorpusError(f"{path}, line {number}: {token!r} is outside every tree")
            elif token == ")":
                start, parts = stack.pop()
                tree = _made(parts, f"{path}, line {start}", is_root=not stack)
                if stack:
                    stack[-1][1].append(tree)
                else:
                    yield tree
            else:
                stack[-1][1].append(token)
    if stack:
        raise CorpusError(f"{path} ends within the tree that begins on line {stack[0][0]}: a bracket is not closed")


def _made(parts: list[str | Tree], where: str, is_root: bool) -> Tree:
    label, *rest = parts if parts and isinstance(parts[0], str) else ["", *parts]
    children = [part for part in rest if isinstance(part, Tree)]
    if len(rest) == 1 and not children:
        return Tree(str(label), word=str(rest[0]))
    if len(children) != len(rest) or not rest or not (label or is_root):
        raise CorpusError(f"{where}: a constituent must be a name followed by words or by constituents in brackets")
    return Tree(str(label), tuple(children))


def _without_traces(tree: Tree) -> Tree | None:
    if tree.label in ("", "TOP", "ROOT", "S1") and len(tree.children) == 1:
        return _without_traces(tree.children[0])
    if tree.word is not None:
        return None if tree.label == _EMPTY else tree
    children = _kept(map(_without_traces, tree.children))
    # A label that begins with a hyphen is a bracket or a dash, and has no function.
    plain = re.split(r"[-=|]", tree.label)[0] or tree.label
    return Tree(plain, children) if children else None


def _kept(trees: Iterable[Tree | None]) -> tuple[Tree, ...]:
    return tuple(tree for tree in trees if tree is not None)
