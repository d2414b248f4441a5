"""`vanilla-transformer average`: checkpoint averaging (section 6.1)."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.cli.files import check_new_directory
from vanilla_transformer.errors import RunError
from vanilla_transformer.model_directory import RECIPE
from vanilla_transformer.options import OptionalCount
from vanilla_transformer.recipe.reading import load_recipe


@dataclass(frozen=True)
class Average:
    """Average the last checkpoints of a run (section 6.1). The run need not be finished."""

    #: Output directory of the run.
    directory: Annotated[Path, Positional, arg(metavar="RUN")]
    #: Directory for the averaged model; must be empty or not exist.
    output: Path
    #: Average the last N checkpoints (default: average_checkpoints in the run's recipe).
    last: OptionalCount = None

    def run(self) -> None:
        """Averages the checkpoints, saves the model and prints its directory."""
        from vanilla_transformer.loading.tokenizers import load_tokenizer
        from vanilla_transformer.tasks import task_for
        from vanilla_transformer.training.checkpoints import checkpoints_to_average, load_average
        from vanilla_transformer.training.model import build_model
        from vanilla_transformer.training.run_directory import RunDirectory
        from vanilla_transformer.training.summary import Summary, describe_weights

        check_new_directory(self.output)
        run = RunDirectory(self.directory)
        if not (run.path / RECIPE).is_file():
            raise RunError(f"There is no run in {run.path}.")
        recipe = load_recipe(run.path / RECIPE)
        summary, number = Summary.read(run.summary), self.last or recipe.run.average_checkpoints
        last_step = summary.steps if summary else None
        checkpoints = checkpoints_to_average(run.checkpoints, recipe.run.save_steps or 1, last_step, number)
        if not checkpoints:
            raise RunError(f"There is no checkpoint in {run.path} that could be averaged.")
        model, _ = build_model(recipe, task_for(recipe), run.checkpoints)
        load_average(model, [checkpoint.path for checkpoint in checkpoints])
        tokenizer = load_tokenizer(run.path)
        with atomic_directory(self.output) as place:
            model.save_pretrained(place)
            tokenizer.save_pretrained(place)
        print(f"The model is {describe_weights([one.step for one in checkpoints])}.", file=sys.stderr)
        print(self.output)
