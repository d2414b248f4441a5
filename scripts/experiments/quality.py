"""Measures whether fast training costs quality: trains a recipe with and without each speed-up, with several seeds."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg

from scripts.experiments.runs import Experiment, ExperimentError, Run, cells, command, write
from scripts.experiments.table3 import Spread
from vanilla_transformer.data.batching import Step, StepPlan
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training import prefetch
from vanilla_transformer.training.run_directory import output_path


class PlanAtRandom(StepPlan):
    """Plans batches of pairs in random order, regardless of length: as many as ours, with equally many tokens each.

    An epoch thus has as many steps as ours, and a step as many tokens, not counting padding.
    """

    def epoch(self, epoch: int) -> list[Step]:
        """Returns the steps of an epoch, with every pair in one of them."""
        ours = sum(len(step.batches) for step in super().epoch(epoch))
        sources, targets = self.lengths
        order = np.random.default_rng([self.seed, epoch]).permutation(len(sources))
        longer = np.maximum(sources[order], targets[order]).astype(np.int64)
        numbers = (longer.cumsum() - longer) * ours // longer.sum()
        batches = np.split(order, np.flatnonzero(np.diff(numbers)) + 1)
        groups = [
            batches[start : start + self.batches_per_step] for start in range(0, len(batches), self.batches_per_step)
        ]
        return [
            Step(tuple(group), sum(int(targets[batch].sum(dtype=np.int64)) for batch in group)) for group in groups
        ]


def batch_at_random() -> None:
    """Makes the trainer of this process use random batches."""
    prefetch.StepPlan = PlanAtRandom  # type: ignore[misc]


@dataclass(frozen=True)
class Variant:
    """A change in a row of the table, to the recipe or to the trainer; `batches` multiplies the batches of a step."""

    words: str
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    before: Callable[[], object] | None = None
    batches: int = 1


VARIANTS = {
    "as-it-is": Variant("bfloat16, batches of about equal length"),
    "float32": Variant("float32", precision="float32"),
    "random-batches": Variant("batches at random", before=batch_at_random),
    "smaller-batches": Variant("twice as many batches a step, of half the size", batches=2),
    "smallest-batches": Variant("four times as many batches a step, of a quarter of the size", batches=4),
}
FIRST = "as-it-is"


@dataclass(frozen=True)
class Quality:
    """Train a recipe in bfloat16 and in float32, with our batches, smaller ones and random ones, and write the scores.

    A run that is finished is not made again: the same command goes on where it was stopped, and with more --runs it
    adds to the table.
    """

    name: Annotated[str | None, Positional, arg(metavar="[RECIPE]", help_behavior_hint="")] = None
    """A recipe of the package or a YAML file, which comes before all options."""
    variants: tuple[str, ...] = tuple(VARIANTS)
    """Rows of the table, beside the first, which is always there."""
    runs: int = 3
    """Runs of each row, with seeds from --seed on."""
    jobs: int = 1
    """Runs at a time, which share the cores or OMP_NUM_THREADS."""
    recipe: Annotated[Recipe, arg(name="")] = Recipe()


def main(words: Sequence[str]) -> None:
    """Trains the missing runs, and writes quality.md and quality.json into the output directory."""
    default = Quality()
    if words and not words[0].startswith("-"):
        recipe = load_recipe(words[0]).with_options(test=(), examples=())
        default = Quality(words[0], recipe=recipe)
    options = tyro.cli(
        Quality,
        prog="scripts.experiments.quality",
        args=words,
        default=default,
        config=(OmitArgPrefixes,),
        description=None,
    )
    base = _checked(options)
    experiment = Experiment(output_path(base).resolve(), options.jobs)
    base = base.with_options(output=None)
    seeds = range(base.optimization.seed, base.optimization.seed + options.runs)
    # The first run settles the recipe's open choices, and every other run has the same choices and vocabulary.
    first = Run(f"{FIRST}-{base.optimization.seed}", base.with_options(precision=VARIANTS[FIRST].precision))
    experiment.train([first])
    if experiment.has_diverged(first):
        raise ExperimentError("The first run diverged: give a smaller --learning-rate-scale or more --warmup-steps.")
    chosen = load_recipe(experiment.model(first) / "recipe.yaml")
    tokenizer = base.tokenizer.tokenizer or str(experiment.model(first))
    base = chosen.with_options(tokenizer=tokenizer, output=None)
    runs = {
        name: [
            first
            if f"{name}-{seed}" == first.name
            else Run(f"{name}-{seed}", _recipe(base, name, seed), VARIANTS[name].before)
            for seed in seeds
        ]
        for name in dict.fromkeys((FIRST, *options.variants))
    }
    in_order = [runs[name][number] for number in range(options.runs) for name in runs]
    experiment.train(in_order, done=lambda run: _write_table(experiment, runs, base))
    print(_write_table(experiment, runs, base))


def _checked(options: Quality) -> Recipe:
    recipe = options.recipe
    if recipe.run.output is None:
        raise ExperimentError("There is no place for the runs and the table: name a directory as --output.")
    if not recipe.data.dev:
        raise ExperimentError("Quality is measured on dev: give the pairs of text as --dev.")
    if options.runs < 1 or options.jobs < 1:
        raise ExperimentError("--runs and --jobs must be at least 1.")
    for name in options.variants:
        if name not in VARIANTS:
            raise ExperimentError(f"There is no variant {name!r}; there are {', '.join(VARIANTS)}.")
    return recipe


def _recipe(base: Recipe, variant: str, seed: int) -> Recipe:
    changes = VARIANTS[variant]
    batches = (base.optimization.batches_per_step or 1) * changes.batches
    return base.with_options(precision=changes.precision, batches_per_step=batches, seed=seed)


def _write_table(experiment: Experiment, runs: dict[str, list[Run]], base: Recipe) -> str:
    """Writes the results so far as Markdown and JSON, and returns the Markdown."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, all_runs in runs.items():
        over = [run for run in all_runs if experiment.is_over(run)]
        rows[name] = [_figures(experiment, run) for run in over]
    names = list(dict.fromkeys(figure for seeds in rows.values() for seed in seeds for figure in seed))
    shown = [name for name in names if name not in ("seed", "diverged")]
    lines = [cells(["training", "seeds", *shown]), cells(["---"] * (2 + len(shown)))]
    for name, seeds in rows.items():
        spreads = [Spread.from_values([seed[figure] for seed in seeds if figure in seed]) for figure in shown]
        ended = ", ".join(str(seed["seed"]) + (" diverged" if seed["diverged"] else "") for seed in seeds)
        lines.append(cells([VARIANTS[name].words, ended, *("" if spread is None else spread for spread in spreads)]))
    steps = f"{base.optimization.max_steps:,} steps of up to {base.optimization.batch_tokens:,} tokens a side"
    lines += [
        "",
        f"Dev, mean ± standard deviation over the seeds; {steps}, vocabulary {base.tokenizer.vocab_size:,}.",
        "",
    ]
    text = "\n".join(lines)
    write(experiment.directory / "quality.md", text)
    write(experiment.directory / "quality.json", json.dumps(rows, indent=1) + "\n")
    return text


def _figures(experiment: Experiment, run: Run) -> dict[str, Any]:
    if experiment.has_diverged(run):
        return {"seed": run.recipe.optimization.seed, "diverged": True}
    summary = experiment.summary(run)
    scores = {score["name"]: score["value"] for score in summary["scores"].get("dev", [])}
    return {
        "seed": run.recipe.optimization.seed,
        "diverged": False,
        "perplexity": math.exp(summary["last_dev_loss"]),
        **scores,
    }


if __name__ == "__main__":
    with command("scripts.experiments.quality"):
        main(sys.argv[1:])
