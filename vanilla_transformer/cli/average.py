"""`vanilla-transformer average`: checkpoint averaging (section 6.1)."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.cli.files import check_new_directory, warn
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.options import OptionalCount
from vanilla_transformer.recipe.reading import load_recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Average:
    """Average the parameters of a run's last checkpoints, or of the given checkpoints (section 6.1).

    Name a run, finished or not, by its directory. Checkpoints (`RUN/checkpoints/step-...`) and models must have the
    same architecture; the result has the tokenizer and the generation config of the first.
    """

    #: One run directory, or several directories of checkpoints or models, or their safetensors files.
    models: Annotated[tuple[Path, ...], Positional, arg(metavar="RUN|CHECKPOINT ...", help_behavior_hint="")]
    #: Output directory for the model; must be empty or not exist.
    output: Path
    #: Average the last N checkpoints of the run (default: average_checkpoints in its recipe).
    last: OptionalCount = None

    def run(self) -> None:
        """Averages, saves the model and prints its directory."""
        from vanilla_transformer.training.checkpoints import home_of, load_average
        from vanilla_transformer.translation.loading import check_numbers, load_tokenizer

        check_new_directory(self.output)
        if not self.models:
            raise RecipeError("Give a run, or at least one checkpoint.")
        if not self.models[0].exists():
            raise FileNotFoundError(2, "No such directory", str(self.models[0]))
        checkpoints, home = self._checkpoints(), home_of(self.models[0])
        model, mean = _model(home), f"The mean of {', '.join(map(str, checkpoints))}"
        load_average(model, checkpoints)
        check_numbers(mean, model.named_parameters())
        tokenizer = load_tokenizer(home)
        with atomic_directory(self.output) as place:
            model.save_pretrained(place)
            tokenizer.save_pretrained(place)
        print(f"{mean}.", file=sys.stderr)
        print(self.output)

    def _checkpoints(self) -> list[Path]:
        from vanilla_transformer.training.checkpoints import checkpoints_to_average
        from vanilla_transformer.training.run_directory import RunDirectory
        from vanilla_transformer.training.summary import read_summary

        run = RunDirectory(self.models[0])
        if len(self.models) > 1 or not run.checkpoints.is_dir():
            if self.last is not None:
                raise RecipeError("--last requires exactly one argument, the directory of a run.")
            return list(self.models)
        recipe = load_recipe(run.path / "recipe.yaml", lenient=True)
        last_step = (read_summary(run.summary) or {}).get("steps")
        chosen = checkpoints_to_average(
            run.checkpoints, recipe.run.save_steps or 1, last_step, self.last or recipe.run.average_checkpoints, warn
        )
        if not chosen:
            raise ValueError(f"{run.path} has no checkpoint yet.")
        return [checkpoint.path for checkpoint in chosen]


def _model(home: Path) -> "PreTrainedModel":
    """Builds a model with that configuration and generation config, before its weights are loaded."""
    from transformers import GenerationConfig

    from vanilla_transformer.registration import model_class
    from vanilla_transformer.tasks import task_for
    from vanilla_transformer.translation.loading import load_config

    if not (home / "config.json").is_file() and (home / "recipe.yaml").is_file():
        recipe = load_recipe(home / "recipe.yaml")
        return task_for(recipe).build(recipe)
    config = load_config(home, its_weights=False)
    model = model_class(config)(config)
    if (home / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(home)
    return model
