"""Error rates of pronunciations, against the nearest of several references."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from vanilla_transformer.errors import MetricError
from vanilla_transformer.evaluation import score

phonemes = st.lists(st.sampled_from(["AH", "B", "K", "T"]), min_size=1, max_size=6).map(" ".join)
items = st.lists(st.tuples(phonemes, st.lists(phonemes, min_size=1, max_size=3)), min_size=1, max_size=6)


def value(name, predictions, references):
    [result] = score([name], predictions, references)
    return result.value


def test_a_word_is_right_if_it_equals_any_of_its_references():
    predictions = ["R EH D", "L EH D", "K AE T"]
    references = [["R IY D", "R EH D"], ["L IY D"], ["K AE T"]]
    assert value("wer", predictions, references) == pytest.approx(100 / 3)


def test_phoneme_errors_are_counted_against_the_nearest_reference():
    # One edit to the second reference (4 tokens) and none to the only one (2 tokens).
    assert value("per", ["A B C X", "D E"], [["X Y Z", "A B C D"], ["D E"]]) == pytest.approx(100 / 6)


def test_of_equally_near_references_the_longest_counts_in_any_order():
    for references in (["A", "A B C"], ["A B C", "A"]):
        assert value("per", ["A B"], [references]) == pytest.approx(100 / 3)


@given(items)
def test_error_rates_are_zero_exactly_for_predictions_among_the_references(given_items):
    predictions = [prediction for prediction, _ in given_items]
    references = [accepted for _, accepted in given_items]
    all_right = all(prediction in accepted for prediction, accepted in given_items)
    for name in ("wer", "per"):
        assert (value(name, predictions, references) == 0) == all_right
        assert value(name, [accepted[-1] for accepted in references], references) == 0


@given(items)
def test_error_rates_do_not_depend_on_the_order_of_references(given_items):
    predictions = [prediction for prediction, _ in given_items]
    forwards = [accepted for _, accepted in given_items]
    backwards = [accepted[::-1] for accepted in forwards]
    for name in ("wer", "per"):
        assert value(name, predictions, forwards) == value(name, predictions, backwards)


def test_error_rate_signature_counts_items_and_references():
    [wer] = score(["wer"], ["A", "B"], [["A"], ["B", "C", "D"]])
    assert "items:2|nrefs:1-3" in wer.signature
    assert str(wer).startswith("wer = 0.00 ")


def test_references_that_are_all_empty_are_refused():
    with refused(MetricError, "empty"):
        score(["per"], ["A"], [[""]])
