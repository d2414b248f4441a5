"""Metrics: the same figures as sacrebleu's command, and error rates against the nearest of several references."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st
from refusals import refused

from vanilla_transformer.errors import CorpusError, SettingError
from vanilla_transformer.evaluation import score
from vanilla_transformer.evaluation.metrics import LANGUAGE_MODEL_METRICS, TextCost

PREDICTIONS = ["The cat sat on a mat .", "Es war einmal, vor langer Zeit!", "nothing of this is right at all", ""]
REFERENCES = ["The cat sat on the mat .", "Es war einmal vor langer Zeit.", "here every word is another one", "End"]
phonemes = st.lists(st.sampled_from(["AH", "B", "K", "T"]), min_size=1, max_size=6).map(" ".join)
items = st.lists(st.tuples(phonemes, st.lists(phonemes, min_size=1, max_size=3)), min_size=1, max_size=6)


def value(name, predictions, references):
    [result] = score([name], predictions, references)
    return result.value


def test_sacrebleu_metrics_equal_the_sacrebleu_command(tmp_path):
    hypothesis, reference = tmp_path / "hypothesis", tmp_path / "reference"
    hypothesis.write_text("".join(f"{line}\n" for line in PREDICTIONS), encoding="utf-8")
    reference.write_text("".join(f"{line}\n" for line in REFERENCES), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", reference, "-i", hypothesis, "-w", "9"]
    with_its_settings = _printed_by([*command, "-m", "bleu", "chrf", "ter"])
    for_split_text = _printed_by([*command, "--tokenize", "none", "--smooth-method", "none", "--force"])

    names = ["sacrebleu", "chrf", "ter", "tokenized_bleu"]
    scores = score(names, PREDICTIONS, [[line] for line in REFERENCES])

    for ours, theirs in zip(scores, [*with_its_settings, for_split_text], strict=True):
        assert ours.value == pytest.approx(theirs["score"], abs=1e-8)
        assert ours.signature == theirs["signature"]


def _printed_by(command):
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_sacrebleu_takes_different_numbers_of_references():
    references = [[line, "another reference"] if number % 2 else [line] for number, line in enumerate(PREDICTIONS)]
    [bleu] = score(["sacrebleu"], PREDICTIONS, references)
    assert bleu.value == pytest.approx(100)
    assert "nrefs:var" in bleu.signature


def test_texts_that_cannot_be_scored_are_refused():
    with refused(ValueError, "predictions", "several texts"):
        score(["chrf"], "a b", [["a"], ["b"], ["c"]])
    with refused(CorpusError, "2 predictions", "1 references"):
        score(["wer"], ["A", "B"], [["A"]])
    with refused(CorpusError, "reference"):
        score(["wer"], ["A"], [[]])
    with refused(CorpusError, "None"):
        score(["chrf"], ["A"], [["A", None]])
    with refused(SettingError, "metrics", "['chrf']"):
        score("chrf", ["A"], [["A"]])
    with refused(CorpusError, "empty"):
        score(["per"], ["A"], [[""]])


def test_errors_are_counted_against_the_nearest_reference_and_of_equally_near_ones_the_longest():
    predictions = ["R EH D", "L EH D", "K AE T"]
    references = [["R IY D", "R EH D"], ["L IY D"], ["K AE T"]]
    assert value("wer", predictions, references) == pytest.approx(100 / 3)
    assert value("wer", ["10\u2009000"], [["10 000"]]) == value("per", ["10\u2009000"], [["10 000"]]) == 100
    # One edit to the second reference (4 tokens) and none to the only one (2 tokens).
    assert value("per", ["A B C X", "D E"], [["X Y Z", "A B C D"], ["D E"]]) == pytest.approx(100 / 6)
    for references in (["A", "A B C"], ["A B C", "A"]):
        assert value("per", ["A B"], [references]) == pytest.approx(100 / 3)


@given(items)
def test_error_rates_are_zero_for_references_alone_and_do_not_depend_on_their_order(given_items):
    predictions, references = [prediction for prediction, _ in given_items], [accepted for _, accepted in given_items]
    all_right = all(prediction in accepted for prediction, accepted in given_items)
    for name in ("wer", "per"):
        assert (value(name, predictions, references) == 0) == all_right
        assert value(name, [accepted[-1] for accepted in references], references) == 0
        backwards = [accepted[::-1] for accepted in references]
        assert value(name, predictions, references) == value(name, predictions, backwards)


def test_a_model_that_finds_a_text_all_but_impossible_is_scored_too():
    [perplexity] = score(["perplexity"], [TextCost(1e6, 10, 8)], [["a text"]], LANGUAGE_MODEL_METRICS)
    assert perplexity.value == float("inf")
