"""The end of a run: what is optional there does not end it, and what it says about the run is right."""

import sys

import pytest
from small_models import small_recipe

from vanilla_transformer.figures import new_figure
from vanilla_transformer.training import run_directory
from vanilla_transformer.training.run import train


@pytest.fixture
def recipe(tmp_path):
    return small_recipe(tmp_path, output=str(tmp_path / "model"), max_steps=2)


def test_learning_curves_that_cannot_be_plotted_cost_only_the_picture(recipe, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run = train(recipe)
    assert run.summary is not None and "learning_curves.png" not in (run / "README.md").read_text()
    assert "Warning: the learning curves cannot be plotted: import of matplotlib" in (run / "train.log").read_text()


@pytest.mark.parametrize(
    ("rates", "label"),
    [
        ({"warmup_steps": None}, "0.022 × Eq. 3"),
        ({"learning_rate_scale": 1}, "Eq. 3"),
        ({"warmup_steps": None, "learning_rate": 1e-3}, "constant after warm-up"),
    ],
)
def test_the_learning_rate_is_labelled_with_what_it_follows(recipe, monkeypatch, rates, label):
    drawn = []
    monkeypatch.setattr(run_directory, "new_figure", lambda *size: drawn.append(new_figure(*size)) or drawn[-1])
    run = train(recipe.with_options(eval_steps=1, log_steps=1, **rates))
    labels = [line.get_label() for axes in drawn[0].axes for line in axes.lines]
    assert labels == ["train", "dev, without dropout and label smoothing", label]
    assert ("0.022 times that of Eq. 3" in (run / "train.log").read_text()) == (label == "0.022 × Eq. 3")


@pytest.mark.parametrize("average_checkpoints", [1, 2])
def test_the_card_mentions_averaging_where_checkpoints_are_averaged(recipe, average_checkpoints):
    options = {"save_steps": 1, "average_checkpoints": average_checkpoints}
    card = (train(recipe.with_options(**options)) / "README.md").read_text()
    assert "Loss on dev" in card and ("before averaging" in card) == (average_checkpoints > 1)
