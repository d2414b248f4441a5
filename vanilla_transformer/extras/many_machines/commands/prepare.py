"""`vanilla-transformer prepare`: tokenizes text once, in shards, on any number of machines."""

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Directory, ShowProgress
from vanilla_transformer.cli.train import recipe_help, recipe_options
from vanilla_transformer.data.columns import COLUMN_SETTINGS
from vanilla_transformer.extras.many_machines.task_options import TaskOptions
from vanilla_transformer.progress import progress_bar
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe

if TYPE_CHECKING:
    from vanilla_transformer.extras.many_machines.sharding import ShardPreparation

# The recipe fields that decide the tokens. As in every command, --task is the number of one of --tasks.
_TASK = "train_task"
_FIELDS = (
    *("train", *COLUMN_SETTINGS, "labels", "max_length", "documents"),
    *("tokenizer", "tokenizer_algorithm", "tokenizer_sides", "tokenizer_lowercase", "vocab_size", "seed"),
)
_OPTIONS = recipe_options()
_Data: Any = dataclasses.make_dataclass(
    "_Data",
    [(_TASK, *_OPTIONS["task"][1:]), *(_OPTIONS[name] for name in _FIELDS)],
    namespace={"__module__": __name__},
    frozen=True,
)


@dataclass(frozen=True)
class Prepare:
    """Tokenize text once, into shards, for any number of training runs with `train --train prepared:DIR`.

    The tokenizer is trained first, on a sample of the text. Each task then writes a shard, and the last task to finish
    writes a manifest. If interrupted, run the same command again to continue. To use several machines, give each its
    own tasks with --task; finish task 0 first, because it trains the tokenizer for all.
    """

    output: Directory
    """Directory for the shards, local or remote (any that fsspec supports, such as s3://bucket/directory)."""
    name: Annotated[str | None, Positional, arg(metavar="[RECIPE]", help=recipe_help(), help_behavior_hint="")] = None
    progress: ShowProgress = False
    data: Annotated[_Data, arg(name="")] = _Data()
    numbered: Annotated[TaskOptions, arg(name="task")] = TaskOptions(tasks=1)

    @classmethod
    def from_words(cls, words: list[str]) -> "Prepare":
        """Returns the command with the defaults of the recipe, if the first word names one."""
        if not words or words[0].startswith("-"):
            return cls(output=tyro.MISSING)
        recipe = load_recipe(words[0])
        fields = {name: recipe[name] for name in _FIELDS}
        return cls(tyro.MISSING, words[0], data=_Data(**fields, **{_TASK: recipe.task}))

    def run(self) -> None:
        """Runs one task or all, or has an engine run them; after the last task, prints what was prepared."""
        numbered, tasks, workers = self.numbered, self.numbered.tasks or 1, self.numbered.workers or 1
        numbered.check(self.output)
        preparation = self._preparation()
        if numbered.task_number is not None:
            preparation.run_task(numbered.task_number)
        elif numbered.engine is not None:
            numbered.run_on_engine(self, self.output, preparation.unfinished)
        elif workers > 1:
            numbered.run_on_workers([self] * workers, self.progress)
        else:
            with progress_bar(self.progress, "tasks", total=tasks) as bar:
                for number in range(tasks):
                    preparation.run_task(number)
                    bar.update(1)
        manifest = preparation.finish()
        if manifest is not None:
            from vanilla_transformer.extras.many_machines.sharding import in_words

            print(in_words(manifest), file=sys.stderr)
            print(self.output)

    def task_runner(self) -> "Callable[[int], dict[str, Any]]":
        """Loads the tokenizer, and returns a function that runs a task by its number and reports the result."""
        preparation = self._preparation()

        def run(number: int) -> dict[str, Any]:
            did = preparation.run_task(number)
            preparation.finish()
            return {"did": did}

        return run

    def _preparation(self) -> "ShardPreparation":
        from vanilla_transformer.extras.many_machines.sharding import ShardPreparation

        def say(sentence: str) -> None:
            print(sentence, file=sys.stderr)

        fields = {name: getattr(self.data, name) for name in _FIELDS}
        recipe = Recipe.of(**fields, task=getattr(self.data, _TASK))
        return ShardPreparation(recipe, self.output, self.numbered.tasks or 1, say)
