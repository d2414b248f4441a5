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
from vanilla_transformer.training.summary import Summary, describe_weights, format_flops_per_second

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


def test_words_hold_tokens_flops_time_and_the_share_of_the_peak():
    words = SUMMARY.describe()
    assert "24,000,000 target tokens in 10.0 minutes" in words
    assert "40,000 target tokens/s;" in words
    assert "9.00e+15 FLOPs, 1.5% of peak (989 TFLOP/s, published for NVIDIA H200 in bfloat16)" in words
    assert "peak memory 12.34 GB." in words
    assert "\n" not in words


def test_a_measured_peak_is_called_so():
    measured = dataclasses.replace(
        SUMMARY, peak_source="measured", peak_flops_per_second=2.15e11, device="2 CPU threads", precision="float32"
    )
    assert "(215 GFLOP/s, measured with matrix products on 2 CPU threads in float32)" in measured.describe()


def test_several_processes_show_speed_of_all_and_of_each():
    words = dataclasses.replace(SUMMARY, processes=8).describe()
    assert "40,000 target tokens/s (5,000 per process)" in words
    assert "12.34 GB in the main process" in words


class Corpus:
    """Two pairs, as a summary looks at them."""

    lengths = {"source": np.array([4, 6]), "target": np.array([5, 5])}
    report = PreparationReport(read=3, kept=2, dropped_empty=1, dropped_too_long=0)


def test_the_share_is_that_of_all_devices_over_the_time_of_the_whole_run(monkeypatch, tiny_model):
    monkeypatch.setattr(finish, "device_peak", lambda device, precision: Peak(1e9, "published"))
    progress = Progress(step=20, target_tokens=30, seconds=4.0, processes=8)
    inputs = SimpleNamespace(train=Corpus(), languages=("en", "de"))
    summary = finish._summarise(Recipe.of(precision="float32"), inputs, tiny_model, progress, [], [20], {})
    three_epochs = 3 * training_flops(tiny_model.config, *Corpus.lengths.values())
    assert (summary.epochs, summary.pairs) == (3, 2)
    assert summary.flops == pytest.approx(three_epochs)
    assert summary.peak_flops_per_second == 8e9
    assert summary.share_of_peak == pytest.approx(three_epochs / 4.0 / 8e9)
    assert summary.target_tokens_per_second == 30 / 4


def test_a_written_summary_holds_every_field(tmp_path):
    SUMMARY.write(tmp_path / "summary.json")
    assert json.loads((tmp_path / "summary.json").read_text()) == dataclasses.asdict(SUMMARY)


def test_a_summary_is_json_whatever_its_numbers_are(tmp_path):
    scores = {"dev": [Score("wer", float("nan"), "")]}
    dataclasses.replace(SUMMARY, last_loss=float("inf"), scores=scores).write(tmp_path / "summary.json")
    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["last_loss"] is None and summary["scores"]["dev"][0]["value"] is None


def test_rates_have_the_unit_that_suits_them():
    assert [format_flops_per_second(rate) for rate in (7.9e15, 9.5e12, 2.15e11, 3e8)] == [
        "7,900 TFLOP/s",
        "9.5 TFLOP/s",
        "215 GFLOP/s",
        "0.3 GFLOP/s",
    ]


@pytest.mark.parametrize(
    ("steps", "words"),
    [([1000], "the checkpoint of step 1,000"), ([900, 1000], "the mean of the checkpoints of steps 900, 1,000")],
)
def test_words_say_which_checkpoints_the_weights_are_made_of(steps, words):
    assert describe_weights(steps) == words
