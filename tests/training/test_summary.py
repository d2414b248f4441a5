import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from vanilla_transformer.cost import training_flops
from vanilla_transformer.data.token_corpus import PreparationReport
from vanilla_transformer.evaluation.metrics import Score
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training import finalize as finish
from vanilla_transformer.training.checkpoints import Progress
from vanilla_transformer.training.devices import Peak
from vanilla_transformer.training.summary import Summary

SUMMARY = Summary(
    steps=1000,
    epochs=2.5,
    averaged_steps=[900, 1000],
    parameters=63_045_632,
    pairs=40_000,
    target_tokens=24_000_000,
    flops=9e15,
    seconds=600.0,
    last_loss=2.345,
    best_dev_loss=1.9,
    best_dev_step=900,
    last_dev_loss=1.95,
    peak_memory_bytes=12_340_000_000,
    device="NVIDIA H200",
    processes=1,
    peak_flops_per_second=989.4e12,
    peak_source="published",
    share_of_peak=9e15 / 600 / 989.4e12,
    target_tokens_per_second=40_000.0,
    precision="bfloat16",
    scores={"dev": [Score("sacrebleu", 27.3, "nrefs:1")]},
)


class Corpus:
    """Two pairs, as a summary looks at them."""

    lengths = {"source": np.array([4, 6]), "target": np.array([5, 5])}
    report = PreparationReport(read=3, kept=2, dropped_empty=1, dropped_too_long=0)


def test_the_share_is_that_of_all_devices_over_the_time_of_the_whole_run(monkeypatch, tiny_model):
    monkeypatch.setattr(finish, "device_peak", lambda device, precision: Peak(1e9, "published"))
    progress = Progress(step=20, target_tokens=30, seconds=4.0, processes=8)
    inputs = SimpleNamespace(train=Corpus(), languages=("en", "de"))
    logger = SimpleNamespace(read_metrics=list)
    context = SimpleNamespace(recipe=Recipe.of(precision="float32"), inputs=inputs, logger=logger)
    summary = finish._summarise(context, tiny_model, progress, [20], {})
    three_epochs = 3 * training_flops(tiny_model.config, *Corpus.lengths.values())
    assert (summary.epochs, summary.pairs) == (3, 2)
    assert summary.flops == pytest.approx(three_epochs)
    assert summary.peak_flops_per_second == 8e9
    assert summary.share_of_peak == pytest.approx(three_epochs / 4.0 / 8e9)
    assert summary.target_tokens_per_second == 30 / 4


def test_a_summary_is_json_whatever_its_numbers_are(tmp_path):
    scores = {"dev": [Score("wer", float("nan"), "")]}
    dataclasses.replace(SUMMARY, last_loss=float("inf"), scores=scores).write(tmp_path / "summary.json")
    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["last_loss"] is None and summary["scores"]["dev"][0]["value"] is None
