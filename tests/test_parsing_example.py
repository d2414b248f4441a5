"""`examples/parsing.py`: bracketed trees as lines and back, scored as evalb scores them."""

import random

import pytest
from refusals import refused
from test_examples import example

parsing = example("parsing")
Tree, leaves_of, linearize, restore = parsing.Tree, parsing.leaves_of, parsing.linearize, parsing.restore

TREEBANK = """( (S
    (NP-SBJ-1 (NNP Ms.) (NNP Haag) )
    (VP (VBZ plays)
      (NP (NNP Elianti) ))
    (. .) ))
(TOP (S (NP-SBJ (-NONE- *)) (VP (VB Stop) (PRT|ADVP (RP up)) (NP=2 (NP (-LRB- -LRB-) (NN it) (-RRB- -RRB-))))))
"""
SENTENCES = "Ms. Haag plays Elianti .\nStop up -LRB- it -RRB-\n"
TREES = "(S (NP XX XX )NP (VP XX (NP XX )NP )VP . )S\n(S (VP XX (PRT XX )PRT (NP (NP XX XX XX )NP )NP )VP )S\n"
GOLD = TREES.splitlines()[0]


def test_a_treebank_becomes_two_files_of_lines_that_score_in_full(tmp_path, capsys):
    files = [tmp_path / name for name in ("wsj.mrg", "words", "trees")]
    files[0].write_text(TREEBANK)
    parsing.main(["lines", *map(str, files)])
    assert [file.read_text() for file in files[1:]] == [SENTENCES, TREES]
    parsing.main(["score", str(files[2]), str(files[2])])
    assert capsys.readouterr().out == "F1 100.00, 0 trees repaired\n"


def grown(draw: random.Random, depth: int) -> Tree:
    if depth == 0 or draw.random() < 0.3:
        tag = draw.choice(["XX", ",", "."])
        return Tree(tag, tag)
    return Tree(draw.choice("ABC"), tuple(grown(draw, depth - 1) for _ in range(draw.randint(1, 3))))


def test_a_line_gives_back_the_tree_with_nothing_lost():
    draw = random.Random(0)
    for _ in range(300):
        tree = Tree("S", (grown(draw, 4), grown(draw, 4)))
        assert restore(linearize(tree), leaves_of(linearize(tree))) == (tree, 0)


@pytest.mark.parametrize(
    ("line", "meant", "repairs"),
    [
        ("(S (NP XX )NP (VP XX", "(S (NP XX )NP (VP XX )VP )S", 2),
        ("(S (NP XX )VP XX )S", "(S (NP XX XX )NP )S", 2),
        ("(S XX XX XX )S", "(S XX XX )S", 1),
        ("(NP XX )NP (VP XX )VP", "( (NP XX )NP (VP XX )VP )", 1),
        ("", "( XX XX )", 3),
    ],
)
def test_broken_trees_are_repaired_and_counted(line, meant, repairs):
    tree, counted = restore(line, leaves_of("XX XX"))
    assert (linearize(tree), counted) == (meant, repairs)


@pytest.mark.parametrize("text", ["(S (NP (NN a))\n(VP (VB b)", "(S (NN a)))", "(S ())"])
def test_a_broken_treebank_is_refused(tmp_path, text):
    (tmp_path / "bad.mrg").write_text(text)
    with refused(ValueError, "bad.mrg", "line"):
        list(parsing.read_trees(tmp_path / "bad.mrg"))


@pytest.mark.parametrize(
    ("written", "reference", "expected"),
    [
        (GOLD, GOLD, 100.0),
        # Of S, NP, VP, NP the last has another name: 3 of 4 on both sides.
        ("(S (NP XX XX )NP (VP XX (PP XX )PP )VP . )S", GOLD, 75.0),
        # NP from 0 to 1 instead of 0 to 2, and no second NP: 2 of 3 written, 2 of 4 wanted.
        ("(S (NP XX )NP XX (VP XX XX )VP . )S", GOLD, 100 * 2 * 2 / (3 + 4)),
        # Nor is a root of its own; PRT and ADVP are the same; a chain counts each of its labels.
        ("(S (VP XX (ADVP XX )ADVP )VP )S", "(TOP (S (VP XX (PRT XX )PRT )VP )S )TOP", 100.0),
        ("(NP XX )NP", "(S (NP XX )NP )S", 100 * 2 / 3),
        # The same constituent twice is right twice only where it is there twice.
        ("(NP (NP XX )NP )NP", "(NP XX )NP", 100 * 2 / 3),
    ],
)
def test_the_f1_of_brackets_is_the_one_counted_by_hand(written, reference, expected):
    assert parsing.labelled_f1([written], [reference]) == (pytest.approx(expected), 0)


def test_a_corpus_is_counted_as_a_whole_and_repairs_are_told():
    # The second is closed where it ends and its last word hangs on the root: S over both words and NP over one.
    assert parsing.labelled_f1([GOLD, "(S (NP XX"], [GOLD, "(S (NP XX )NP XX )S"]) == (100.0, 1)
