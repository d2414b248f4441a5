import importlib.util
import json
import random
import sqlite3

import pytest
from accelerate import tracking
from accelerate.tracking import GeneralTracker
from refusals import refused

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.loop import train
from vanilla_transformer.training.trackers import final_scores, make_trackers


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"the package {package} is not installed")


@pytest.fixture
def run(tmp_path):
    """Trains a model that hardly learns, in `my-model`, and returns the directory."""
    draw = random.Random(0)
    text = "".join(" ".join(draw.choices(["one", "two", "three"], k=4)) + "\n" for _ in range(40))
    pairs = tuple(str(tmp_path / f"pairs.{side}") for side in ("en", "de"))
    for path in pairs:
        with open(path, "w") as file:
            file.write(text)

    def call(*trackers, max_steps=4):
        recipe = Recipe.of(
            train=pairs,
            dev=pairs,
            vocab_size=264,
            preset="tiny",
            d_model=16,
            d_ff=16,
            num_heads=2,
            encoder_layers=1,
            decoder_layers=1,
            batch_tokens=100,
            batches_per_step=2,
            max_steps=max_steps,
            warmup_steps=4,
            log_steps=2,
            eval_steps=2,
            save_steps=2,
            metrics=("chrf",),
            output=str(tmp_path / "my-model"),
            trackers=trackers,
        )
        return train(recipe)

    return call


def recorded(directory, name):
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: pytest.approx(record[name], rel=1e-5) for record in records if name in record}


@needs("tensorboard")
def test_tensorboard_gets_all_metrics_under_the_outputs_name(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = run("tensorboard")
    run("tensorboard", max_steps=8)
    events = EventAccumulator(str(directory / "trackers" / "my-model"))
    events.Reload()
    for name in ("loss", "learning_rate", "tokens_per_second", "dev_loss"):
        figures = {event.step: event.value for event in events.Scalars(name)}
        assert figures == recorded(directory, name) and list(figures) == [2, 4, 6, 8]
    settings = [path.read_text() for path in (directory / "trackers" / "my-model").rglob("hparams.yml")]
    assert all("vocab_size: 264" in text for text in settings)
    assert {4, 8} == {steps for steps in (4, 8) for text in settings if f"max_steps: {steps}\n" in text}


@needs("wandb")
def test_wandb_keeps_its_files_in_the_output_and_goes_on_with_its_run(run, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    directory = run("wandb")
    run("wandb", max_steps=8)
    name = (directory / "trackers" / "run-id").read_text().strip()
    runs = sorted((directory / "trackers" / "wandb").glob("offline-run-*"))
    assert len(runs) == 2 and all(path.name.endswith(name) for path in runs)
    assert all((path / f"run-{name}.wandb").stat().st_size for path in runs)


@needs("trackio")
def test_trackio_goes_on_with_its_run(run, tmp_path, monkeypatch):
    import trackio

    monkeypatch.setattr(trackio.utils, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr(trackio.sqlite_storage, "TRACKIO_DIR", tmp_path / "trackio")
    directory = run("trackio")
    run("trackio", max_steps=8)
    name = f"my-model-{(directory / 'trackers' / 'run-id').read_text().strip()}"
    with sqlite3.connect(tmp_path / "trackio" / "vanilla-transformer.db") as database:
        rows = database.execute("select step, metrics from metrics where run_name = ?", [name]).fetchall()
    losses = {step: json.loads(metrics)["loss"] for step, metrics in rows if "loss" in json.loads(metrics)}
    assert losses == recorded(directory, "loss")


def test_several_trackers_are_taken_once_each(tmp_path):
    trackers = make_trackers(["tensorboard", "tensorboard"], tmp_path / "my-model")
    assert [tracker.name for tracker in trackers] == ["tensorboard"]
    assert not list(tmp_path.iterdir())


def test_an_unknown_tracker_is_answered_with_the_nearest_before_any_work(run, tmp_path):
    with refused(RecipeError, "'tensorbord'", "'tensorboard'", "aim"):
        run("tensorbord")
    with refused(RecipeError, "'xyz'", "aim"):
        run("xyz")
    assert not (tmp_path / "my-model").exists()


def test_a_tracker_that_is_not_installed_is_answered_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "_available_trackers", [])
    for name, package in {"wandb": "wandb", "comet_ml": "comet-ml"}.items():
        with refused(RecipeError, name, f"pip install {package}"):
            make_trackers([name], tmp_path)


def test_a_tracker_of_ones_own_is_taken_by_its_name(run, tmp_path, monkeypatch):
    told = []

    class Mine(GeneralTracker):
        name = "mine"
        requires_logging_directory = False

        def __init__(self, project):
            super().__init__()
            self.project = project

        @property
        def tracker(self):
            return self

        def store_init_configuration(self, values):
            told.append(values["vocab_size"])

        def log(self, values, step=None, **_):
            told.append((step, *values))

    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "mine", Mine)
    run("mine")
    losses = ("loss", "learning_rate", "tokens_per_second")
    measured = ("dev_loss", "dev_perplexity")
    assert told == [264, (2, *losses), (2, *measured), (4, *losses), (4, *measured), (4, "dev/chrf")]


def test_final_scores_are_named_after_the_text_and_the_metric(tmp_path):
    score = {"name": "chrf", "value": 41.5, "signature": "x"}
    (tmp_path / "summary.json").write_text(json.dumps({"scores": {"dev": [score], "test": [score, score]}}))
    assert final_scores(tmp_path / "summary.json") == {"dev/chrf": 41.5, "test/chrf": 41.5}
