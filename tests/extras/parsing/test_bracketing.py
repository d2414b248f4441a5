"""Labelled bracketing, on examples that are counted by hand after evalb's rules."""

import pytest

from vanilla_transformer.evaluation import score


def f1(prediction: str, reference: str) -> float:
    return score(["bracketing"], [prediction], [[reference]])[0].value


GOLD = "(S (NP XX XX )NP (VP XX (NP XX )NP )VP . )S"


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        (GOLD, GOLD, 100.0),
        # Of S, NP, VP, NP the last has another name: 3 of 4 on both sides.
        ("(S (NP XX XX )NP (VP XX (PP XX )PP )VP . )S", GOLD, 75.0),
        # NP from 0 to 1 instead of 0 to 2, and no second NP: 2 of 3 written, 2 of 4 wanted.
        ("(S (NP XX )NP XX (VP XX XX )VP . )S", GOLD, 100 * 2 * 2 / (3 + 4)),
        # Where the full stop hangs is not counted.
        ("(S (NP XX XX )NP (VP XX (NP XX )NP . )VP )S", GOLD, 100.0),
        # Nor is a root of its own; PRT and ADVP are the same; a chain counts each of its labels.
        ("(S (VP XX (ADVP XX )ADVP )VP )S", "(TOP (S (VP XX (PRT XX )PRT )VP )S )TOP", 100.0),
        ("(NP XX )NP", "(S (NP XX )NP )S", 100 * 2 / 3),
        # Brackets that hold punctuation alone hold nothing.
        ("(S XX (NP . )NP )S", "(S XX . )S", 100.0),
        # The same constituent twice is right twice only where it is there twice.
        ("(NP (NP XX )NP )NP", "(NP XX )NP", 100 * 2 / 3),
    ],
)
def test_the_f1_of_brackets_is_the_one_counted_by_hand(prediction, reference, expected):
    assert f1(prediction, reference) == pytest.approx(expected)


def test_a_corpus_is_counted_as_a_whole_and_repairs_are_told():
    [result] = score(["bracketing"], [GOLD, "(S (NP XX"], [[GOLD], ["(S (NP XX )NP XX )S"]])
    # The second is closed where it ends and its last word hangs on the root: S over both words and NP over one.
    assert result.value == pytest.approx(100.0)
    assert "repaired:1|" in result.signature and "recall:100.00|precision:100.00" in result.signature
