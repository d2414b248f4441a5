"""`vanilla-transformer average`: a model whose weights are the mean of several (section 6.1)."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import OptionalInt, UsageError, at_least_one
from vanilla_transformer.cli.streams import warn
from vanilla_transformer.recipe.schema import load_recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Average:
    """Make a model of the mean weights of several: of a run's last checkpoints, or of those named (section 6.1).

    A run, finished or not, is named by its directory. Checkpoints (`RUN/checkpoints/step-...`) and models must be of
    one shape; tokenizer and settings of the search are those of the first.
    """

    models: Annotated[tuple[Path, ...], Positional, arg(metavar="RUN|CHECKPOINT ...", help_behavior_hint="")]
    """Directory of a run, or directories of checkpoints or models, or files of weights in such directories."""
    output: Path
    """Directory for the model; it must be empty or not exist."""
    last: OptionalInt = None
    """How many checkpoints of a run, from its end (default: what its recipe says)."""

    def run(self) -> None:
        """Averages, saves and prints the directory."""
        from vanilla_transformer.checkpointing.averaging import AveragingError, load_average
        from vanilla_transformer.checkpointing.store import weights_damage
        from vanilla_transformer.translation import load_tokenizer
        from vanilla_transformer.translation.loading import check_numbers

        if self.output.exists() and (not self.output.is_dir() or any(self.output.iterdir())):
            raise UsageError(f"{self.output} is not empty: name another directory as --output.")
        checkpoints = self._checkpoints()
        home = _home(self.models[0])
        for checkpoint in checkpoints:
            damage = weights_damage(_directory(checkpoint))
            if damage is not None:
                raise AveragingError(f"{checkpoint} is not as it was written, {damage}: name the others.")
        model = _model(home)
        load_average(model, checkpoints)
        check_numbers(f"The mean of {', '.join(map(str, checkpoints))}", model)
        tokenizer = load_tokenizer(home)
        model.save_pretrained(self.output)
        tokenizer.save_pretrained(self.output)
        print(f"The mean of {', '.join(map(str, checkpoints))}.", file=sys.stderr)
        print(self.output)

    def _checkpoints(self) -> list[Path]:
        from vanilla_transformer.checkpointing.store import checkpoints_to_average
        from vanilla_transformer.reporting.summary import read_summary
        from vanilla_transformer.training.run_directory import RunDirectory

        at_least_one(last=self.last)
        if not self.models:
            raise UsageError("Name a run, or at least one checkpoint.")
        run = RunDirectory(self.models[0])
        if len(self.models) > 1 or not run.checkpoints.is_dir():
            if self.last is not None:
                raise UsageError("--last is for the checkpoints of one run.")
            return list(self.models)
        recipe = load_recipe(run.path / "recipe.yaml")
        last_step = (read_summary(run.summary) or {}).get("steps")
        chosen = checkpoints_to_average(
            run.checkpoints, recipe.save_steps or 1, last_step, self.last or recipe.average_checkpoints, warn
        )
        if not chosen:
            raise ValueError(f"{run.path} has no checkpoint yet.")
        return [checkpoint.path for checkpoint in chosen]


def _home(path: Path) -> Path:
    """The directory that has the tokenizer, and the sizes of the model, of a run, a checkpoint or a model."""
    if not path.exists():
        raise FileNotFoundError(2, "There is no such directory", str(path))
    path = _directory(path)
    in_run = path.resolve().parent.parent
    return in_run if not (path / "recipe.yaml").is_file() and (in_run / "recipe.yaml").is_file() else path


def _directory(path: Path) -> Path:
    """Where a file of weights has the rest beside it; a directory stays itself."""
    return path.parent if path.is_file() else path


def _model(home: Path) -> "PreTrainedModel":
    """A model of that shape and search, whose weights are still to come."""
    from transformers import GenerationConfig

    from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
    from vanilla_transformer.tasks import get_task
    from vanilla_transformer.translation import load_config

    if not (home / "config.json").is_file() and (home / "recipe.yaml").is_file():
        recipe = load_recipe(home / "recipe.yaml")
        return get_task(recipe.task).build(recipe)
    model = VanillaTransformerForConditionalGeneration(load_config(home, its_weights=False))
    if (home / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(home)
    return model
