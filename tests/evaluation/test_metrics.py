"""Metrics: the same figures as sacrebleu's command."""

import json
import subprocess
import sys

import pytest
from refusals import refused

from vanilla_transformer.errors import MetricError
from vanilla_transformer.evaluation import check_names, score

PREDICTIONS = ["The cat sat on a mat .", "Es war einmal, vor langer Zeit!", "nothing of this is right at all", ""]
REFERENCES = ["The cat sat on the mat .", "Es war einmal vor langer Zeit.", "here every word is another one", "End"]


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


def test_unknown_metric_is_an_error_that_names_the_nearest():
    with refused(MetricError, "'sacrebleu'"):
        check_names(["chrf", "sacrebleau"])


def test_texts_that_cannot_be_scored_are_refused():
    with refused(ValueError, "predictions", "several texts"):
        score(["chrf"], "a b", [["a"], ["b"], ["c"]])
    with refused(ValueError, "references", "several texts"):
        score(["chrf"], ["a b"], ["a b"])
    with refused(MetricError, "2 predictions", "1 references"):
        score(["wer"], ["A", "B"], [["A"]])
    with refused(MetricError, "at least one"):
        score(["wer"], [], [])
    with refused(MetricError, "reference"):
        score(["wer"], ["A"], [[]])
