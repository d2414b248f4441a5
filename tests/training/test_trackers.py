import importlib.util
import json
import random

import pytest

from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.loop import train


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
