"""Section 6.3: constituency parsing as translation: trees become lines to learn from, and written trees are scored.

    python examples/parsing.py lines train.mrg train.words train.trees      # likewise dev and test
    vanilla-transformer train wsj-parsing --train train.words train.trees --dev dev.words dev.trees --output parser
    vanilla-transformer translate parser test.words --output written
    python examples/parsing.py score written test.trees

A tree becomes brackets that name their constituent at both ends, as in Vinyals et al. 2015: `(S (NP XX )NP (VP XX )VP
. )S`. `XX` stands for a word. Deviation: punctuation keeps its tag, because the usual score excludes it.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

# The tags that evalb's COLLINS.prm excludes from its counts; two labels that it counts as one (EQ_LABEL); and those
# that are no constituents (DELETE_LABEL).
PUNCTUATION = frozenset([",", ":", "``", "''", "."])
EQUAL = {"PRT": "ADVP"}
UNCOUNTED = {"", "TOP", "ROOT", "S1"}


class Tree(NamedTuple):
    """A constituent with its parts, or a tag with its word."""

    label: str
    parts: tuple["Tree", ...] | str

    def leaves(self) -> Iterator["Tree"]:
        """Yields the tags with their words, from left to right."""
        return iter((self,)) if isinstance(self.parts, str) else chain(*(part.leaves() for part in self.parts))


def read_trees(file: Path) -> Iterator[Tree]:
    """Yields the trees of a file of brackets (`.mrg`) without traces, functions, indices and a root's name.

    Raises:
        ValueError: The brackets of a line do not write trees.
    """
    stack: list[list[Tree | str]] = [[]]
    number = 0
    for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):
        for token in re.findall(r"[()]|[^\s()]+", line):
            if token == "(":
                stack.append([])
                continue
            part = made(stack.pop()) if token == ")" else token
            if part is None or not stack or (token != ")" and len(stack) == 1):
                raise ValueError(
                    f"{file}, line {number}: unexpected {token!r}: a constituent is a name with a word or constituents"
                )
            stack[-1].append(part)
        if len(stack) == 1:
            yield from filter(None, map(without_traces, stack[0]))
            stack = [[]]
    if len(stack) > 1:
        raise ValueError(f"{file}, line {number}: a bracket is not closed")


def made(parts: list[Tree | str]) -> Tree | None:
    """Returns the tree of what stands in a pair of brackets, None if that is no tree."""
    label = parts.pop(0) if parts and isinstance(parts[0], str) else ""
    if len(parts) == 1 and isinstance(parts[0], str) and label:
        return Tree(label, parts[0])
    trees = tuple(part for part in parts if not isinstance(part, str))
    return Tree(label, trees) if trees and len(trees) == len(parts) else None


def without_traces(tree: Tree) -> Tree | None:
    """Returns a tree as it is scored; None if it holds nothing but traces (`-NONE-`)."""
    if isinstance(tree.parts, str):
        return None if tree.label == "-NONE-" else tree
    if tree.label in UNCOUNTED and len(tree.parts) == 1:
        return without_traces(tree.parts[0])
    parts = tuple(part for part in map(without_traces, tree.parts) if part)
    return Tree(re.split(r"[-=|]", tree.label)[0] or tree.label, parts) if parts else None


def linearize(tree: Tree) -> str:
    """Writes a tree as a line."""
    if isinstance(tree.parts, str):
        return tree.label if tree.label in PUNCTUATION else "XX"
    return " ".join((f"({tree.label}", *map(linearize, tree.parts), f"){tree.label}"))


def restore(line: str, leaves: Sequence[Tree]) -> tuple[Tree, int]:
    """Returns the tree that a line writes over given words, and how many repairs it needed.

    A closing bracket closes the constituent that it names with all that is open inside; one that names nothing open is
    dropped. What is open at the end is closed. Surplus words are dropped, missing ones are parts of the root.
    """
    repairs, rest = 0, list(leaves)
    stack: list[tuple[str, list[Tree]]] = [("", [])]

    def close() -> None:
        label, parts = stack.pop()
        if parts:
            stack[-1][1].append(Tree(label, tuple(parts)))

    for token in line.split():
        if token[0] == "(" and len(token) > 1:
            stack.append((token[1:], []))
        elif token[0] == ")" and len(token) > 1:
            if token[1:] not in [label for label, _ in stack[1:]]:
                repairs += 1
                continue
            while stack[-1][0] != token[1:]:
                repairs += 1
                close()
            repairs += not stack[-1][1]
            close()
        elif rest:
            stack[-1][1].append(rest.pop(0))
        else:
            repairs += 1
    repairs += len(stack) - 1 + len(rest)
    while len(stack) > 1:
        close()
    parts = stack[0][1]
    if len(parts) == 1 and not isinstance(parts[0].parts, str):
        return Tree(parts[0].label, (*parts[0].parts, *rest)), repairs
    return Tree("", (*parts, *rest)), repairs + (len(parts) != 1)


def leaves_of(line: str) -> list[Tree]:
    """Returns the words and punctuation of a line, each with its tag."""
    return [Tree(token, token) for token in line.split() if token[0] not in "()"]


def brackets(tree: Tree) -> Counter[tuple[str, int, int]]:
    """Counts the constituents by label, first word and the word after the last, without punctuation."""
    found: Counter[tuple[str, int, int]] = Counter()

    def walk(part: Tree, start: int) -> int:
        if isinstance(part.parts, str):
            return start + (part.label not in PUNCTUATION)
        end = start
        for each in part.parts:
            end = walk(each, end)
        if end > start and part.label not in UNCOUNTED:
            found[EQUAL.get(part.label, part.label), start, end] += 1
        return end

    walk(tree, 0)
    return found


def labelled_f1(written: Sequence[str], references: Sequence[str]) -> tuple[float, int]:
    """Returns Table 4's F1 in percent over all lines, and how many needed repairs."""
    matched = both = repaired = 0
    for line, reference in zip(written, references, strict=True):
        words = leaves_of(reference)
        gold, (tree, repairs) = brackets(restore(reference, words)[0]), restore(line, words)
        mine = brackets(tree)
        matched, both, repaired = (
            matched + (gold & mine).total(),
            both + (gold + mine).total(),
            repaired + (repairs > 0),
        )
    return 200 * matched / both if both else 0.0, repaired


def main(words: Sequence[str] | None = None) -> None:
    """Writes sentences and trees as two files of lines, or prints the score of written trees."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, names in {"lines": ("treebank", "sentences", "trees"), "score": ("written", "trees")}.items():
        subparser = commands.add_parser(command)
        for name in names:
            subparser.add_argument(name, type=Path)
    options = parser.parse_args(words)
    if options.command == "lines":
        trees = list(read_trees(options.treebank))
        sentences = (" ".join(str(leaf.parts) for leaf in tree.leaves()) for tree in trees)
        options.sentences.write_text("".join(f"{line}\n" for line in sentences), "utf-8")
        options.trees.write_text("".join(f"{linearize(tree)}\n" for tree in trees), "utf-8")
        return
    f1, repaired = labelled_f1(*(file.read_text("utf-8").splitlines() for file in (options.written, options.trees)))
    print(f"F1 {f1:.2f}, {repaired} trees repaired")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"parsing.py: error: {error}")
