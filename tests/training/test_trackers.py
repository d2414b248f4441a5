import json

import pytest
from accelerate.tracking import TensorBoardTracker
from small_models import small_recipe
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vanilla_transformer.training.run import train


def recorded(directory, name):
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: pytest.approx(record[name], rel=1e-5) for record in records if name in record}


def test_tensorboard_gets_all_metrics(tmp_path):
    often = {"log_steps": 2, "eval_steps": 2, "trackers": ("tensorboard",)}
    recipe = small_recipe(tmp_path, output=str(tmp_path / "my-model"), **often)
    directory = train(recipe)
    train(recipe, max_steps=8)
    events = EventAccumulator(str(directory / "trackers" / "vanilla-transformer"))
    events.Reload()
    for name in ("loss", "learning_rate", "tokens_per_second", "dev_loss"):
        figures = {event.step: event.value for event in events.Scalars(name)}
        assert figures == recorded(directory, name) and list(figures) == [2, 4, 6, 8]
    settings = [path.read_text() for path in (directory / "trackers" / "vanilla-transformer").rglob("hparams.yml")]
    assert all("vocab_size: 275" in text for text in settings)
    assert {4, 8} == {steps for steps in (4, 8) for text in settings if f"max_steps: {steps}\n" in text}


def test_a_tracker_that_fails_costs_only_its_records(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("no route to the server")

    for method in ("log", "finish"):
        monkeypatch.setattr(TensorBoardTracker, method, fail)
    run = train(small_recipe(tmp_path, output=str(tmp_path / "model"), metrics=("chrf",), trackers=("tensorboard",)))
    said = (run / "train.log").read_text()
    assert run.summary is not None and recorded(run.directory, "dev_loss")
    for words in ("store this step", "store the scores", "be closed"):
        assert f"Warning: the trackers cannot {words}: no route to the server" in said
