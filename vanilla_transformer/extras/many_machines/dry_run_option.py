"""The option of `train` that shows a run's plan instead of training."""

from dataclasses import dataclass

from vanilla_transformer.cli.arguments import Flag
from vanilla_transformer.recipe.schema import Recipe


@dataclass(frozen=True)
class DryRunOption:
    """A run's plan instead of the run."""

    dry_run: Flag = False
    """Start all processes, prepare the data, print what each process would do in its next steps, and exit."""

    def run(self, recipe: Recipe) -> None:
        """Prints the plan of a run."""
        from vanilla_transformer.extras.many_machines.dry_run import dry_run

        dry_run(recipe)
