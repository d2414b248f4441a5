"""Bracketed trees as lines, and back; what no tree is written in."""

import random

import pytest
from refusals import refused

from vanilla_transformer.data.corpus import read_corpus
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.extras.parsing.trees import Tree, leaves_of, linearize, read_trees, restore

TREEBANK = """( (S
    (NP-SBJ-1 (NNP Ms.) (NNP Haag) )
    (VP (VBZ plays)
      (NP (NNP Elianti) ))
    (. .) ))
(TOP (S (NP-SBJ (-NONE- *)) (VP (VB Stop) (PRT|ADVP (RP up)) (NP=2 (NP (-LRB- -LRB-) (NN it) (-RRB- -RRB-))))))
"""
WRITTEN = [
    ("Ms. Haag plays Elianti .", "(S (NP XX XX )NP (VP XX (NP XX )NP )VP . )S"),
    ("Stop up -LRB- it -RRB-", "(S (VP XX (PRT XX )PRT (NP (NP XX XX XX )NP )NP )VP )S"),
]


def words(*tags: str) -> list[Tree]:
    return [Tree(tag, word=f"w{number}") for number, tag in enumerate(tags)]


def test_trees_of_a_treebank_become_lines(tmp_path):
    (tmp_path / "wsj.mrg").write_text(TREEBANK)
    assert list(read_trees(str(tmp_path / "wsj.mrg"))) == WRITTEN
    corpus = read_corpus([str(tmp_path / "wsj.mrg")], cache_dir=tmp_path)
    assert list(zip(corpus["source"], corpus["target"], strict=True)) == WRITTEN


def grown(draw: random.Random, depth: int) -> Tree:
    if depth == 0 or draw.random() < 0.3:
        return Tree(draw.choice(["XX", ",", "."]), word="w")
    return Tree(draw.choice("ABC"), tuple(grown(draw, depth - 1) for _ in range(draw.randint(1, 3))))


def test_a_line_gives_back_the_tree_with_nothing_lost():
    draw = random.Random(0)
    for _ in range(300):
        tree = Tree("S", (grown(draw, 4), grown(draw, 4)))
        line = linearize(tree)
        assert restore(line, leaves_of(line)) == (Tree("S", tuple(renamed(child) for child in tree.children)), 0)


def renamed(tree: Tree) -> Tree:
    """The same tree with the tags for words."""
    if tree.word is not None:
        return Tree(tree.label, word=tree.label)
    return Tree(tree.label, tuple(map(renamed, tree.children)))


@pytest.mark.parametrize(
    ("line", "meant", "repairs"),
    [
        ("(S (NP XX )NP (VP XX", "(S (NP XX )NP (VP XX )VP )S", 2),
        ("(S (NP XX )VP XX )S", "(S (NP XX XX )NP )S", 2),
        ("(S XX )S", "(S XX XX )S", 1),
        ("(S XX XX XX )S", "(S XX XX )S", 1),
        ("(S XX (NP )NP XX )S", "(S XX XX )S", 1),
        ("(NP XX )NP (VP XX )VP", "( (NP XX )NP (VP XX )VP )", 1),
        ("", "( XX XX )", 3),
    ],
)
def test_broken_trees_are_repaired_and_counted(line, meant, repairs):
    tree, counted = restore(line, words("XX", "XX"))
    assert (linearize(tree), counted) == (meant, repairs)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("(S (NP (NN a))\n(VP (VB b)", "line 1 bracket"),
        ("(S (NN a)))", "line 1 ')'"),
        ("plain text", "line 1 'plain'"),
        ("(S (NN a b))", "line 1 constituent"),
        ("(S ())", "line 1 constituent"),
    ],
)
def test_a_broken_treebank_is_refused_with_its_line(tmp_path, text, named):
    (tmp_path / "bad.mrg").write_text(text)
    with refused(CorpusError, *named.split()):
        list(read_trees(str(tmp_path / "bad.mrg")))


def test_trees_have_no_columns(tmp_path):
    (tmp_path / "wsj.mrg").write_text(TREEBANK)
    with refused(CorpusError, "trees", "columns"):
        read_corpus([str(tmp_path / "wsj.mrg"), "source_column=en"], cache_dir=tmp_path)
