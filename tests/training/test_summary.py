import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vanilla_transformer.cost import training_flops
from vanilla_transformer.data.preparation import PreparationReport
from vanilla_transformer.evaluation.metrics import Score
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training import finalize as finish
from vanilla_transformer.training.checkpoints import Progress
from vanilla_transformer.training.summary import Summary, peak_memory


class Corpus:
    """Two pairs, as a summary looks at them."""

    lengths = {"source": np.array([4, 6]), "target": np.array([5, 5])}
    report = PreparationReport(read=3, kept=2, dropped_empty=1, dropped_too_long=0)


def test_the_cost_is_that_of_the_whole_run(tiny_model):
    progress = Progress(step=20, target_tokens=30, seconds=4.0, processes=8)
    inputs = SimpleNamespace(train=Corpus(), languages=("en", "de"))
    logger = SimpleNamespace(read_metrics=list)
    context = SimpleNamespace(recipe=Recipe.of(precision="float32"), inputs=inputs, logger=logger)
    summary = finish._summarise(context, tiny_model, progress, [20], {})
    three_epochs = 3 * training_flops(tiny_model.config, *Corpus.lengths.values())
    assert (summary.epochs, summary.pairs) == (3, 2)
    assert summary.flops == pytest.approx(three_epochs)
    assert summary.target_tokens_per_second == 30 / 4


def test_a_summary_is_json_whatever_its_numbers_are(tmp_path):
    scores = {"dev": [Score("wer", float("nan"), "")]}
    figures = {field.name: 1 for field in dataclasses.fields(Summary)}
    Summary(**figures | {"last_loss": float("inf"), "scores": scores}).write(tmp_path / "summary.json")
    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["last_loss"] is None and summary["scores"]["dev"][0]["value"] is None
    [score] = Summary.read(tmp_path / "summary.json").scores["dev"]
    assert math.isnan(score.value)


def test_peak_memory_grows_with_what_is_held():
    before = peak_memory(torch.device("cpu"))
    held = torch.ones(200_000_000 // 4)
    assert peak_memory(torch.device("cpu")) >= max(before, held.nbytes)
