"""Experiment trackers by name: accelerate's own, with this run's directory, name and id, so that runs resume."""

import secrets
from collections.abc import Sequence
from pathlib import Path

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, TensorBoardTracker, get_available_trackers

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.recipe.schema import Recipe, in_words
from vanilla_transformer.suggestions import did_you_mean
from vanilla_transformer.training.processes import TRACKER_FILES
from vanilla_transformer.training.run_directory import output_path

PROJECT = "vanilla-transformer"


def make_trackers(names: Sequence[str], output: Path) -> list[str | GeneralTracker]:
    """Returns the trackers of these names for the run in `output`; nothing is written until they start.

    Raises:
        RecipeError: A tracker does not exist or is not installed.
    """
    available = {str(tracker) for tracker in get_available_trackers()}
    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            known = sorted(LOGGER_TYPE_TO_CLASS)
            hint = did_you_mean(name, known) or "."
            raise RecipeError(f"There is no tracker {name!r}{hint} Available: {', '.join(known)}.")
        if name not in available:
            raise RecipeError(f"The tracker {name} is not installed: run `pip install {name.replace('_', '-')}`.")
    # accelerate would name the run in TensorBoard after the project.
    own = {"tensorboard": TensorBoardTracker(output.absolute().name, output / TRACKER_FILES)}
    return [own.get(name, name) for name in dict.fromkeys(names)]


def start_trackers(accelerator: Accelerator, recipe: Recipe) -> None:
    """Starts the trackers with the settings of the run, with lists written as words.

    Weights & Biases and Trackio resume the run of this directory, if there is one.
    """
    settings = recipe.given()
    words = {name: in_words(value) for name, value in settings.items() if isinstance(value, list)}
    resumed = {}
    if accelerator.is_main_process and {"wandb", "trackio"} & {*recipe.run.trackers}:
        output = output_path(recipe)
        name, run_id = output.absolute().name, _run_id(output)
        resumed = {
            "wandb": {"name": name, "id": run_id, "dir": str(output / TRACKER_FILES), "resume": "allow"},
            # Trackio identifies runs by name.
            "trackio": {"name": f"{name}-{run_id}", "resume": "allow"},
        }
    accelerator.init_trackers(PROJECT, settings | words, resumed)


def _run_id(output: Path) -> str:
    """Returns the id of the run: drawn when it first starts, and kept when it resumes."""
    file = output / TRACKER_FILES / "run-id"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(secrets.token_hex(4) + "\n", encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()
