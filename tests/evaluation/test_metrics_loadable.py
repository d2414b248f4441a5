"""The same metrics by the library `evaluate`: without network, by the same code."""

import socket

import evaluate
import pytest

from vanilla_transformer.evaluation import METRICS, score
from vanilla_transformer.evaluation.loadable import LoadableMetric

PREDICTIONS = ["Der Nord-Ostsee-Kanal ist sehr lang.", "B AE T"]
REFERENCES = [["Der Nord-Ostsee-Kanal ist lang.", "Ein Kanal ist sehr lang."], ["K AE T"]]
NAMES = [name for name in METRICS if ":" not in name]


@pytest.mark.parametrize("name", [*NAMES, "paper_bleu:fr"])
def test_each_metric_counts_as_the_command_does_in_batches_too(tmp_path, monkeypatch, name):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *asked, **named: pytest.fail(f"{asked} was asked for"))
    metric = LoadableMetric(name, cache_dir=str(tmp_path))
    [expected] = score([name], PREDICTIONS, REFERENCES)
    figures = {name: expected.value, "signature": expected.signature}
    assert metric.compute(predictions=PREDICTIONS, references=REFERENCES) == figures
    for prediction, references in zip(PREDICTIONS, REFERENCES, strict=True):
        metric.add_batch(predictions=[prediction], references=[references])
    assert metric.compute() == figures


def test_metrics_are_combined_and_one_reference_needs_no_list(tmp_path):
    both = evaluate.combine([LoadableMetric(name, cache_dir=str(tmp_path)) for name in ("wer", "per")])
    figures = both.compute(predictions=["A B", "C"], references=["A B", "D"])
    assert (figures["wer"], round(figures["per"], 2)) == (50, 33.33)
