"""Measures whether fast training costs quality: trains a recipe with and without each speed-up, with several seeds."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from scripts.experiments.runs import Experiment, ExperimentError, Options, Run, Spread, command, write
from scripts.turns import cells
from vanilla_transformer.data.batching import Step, StepPlan
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training import steps


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
    steps.StepPlan = PlanAtRandom  # type: ignore[misc]


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
class Quality(Options):
    """Train a recipe in bfloat16 and in float32, with our batches, smaller ones and random ones, and write the scores.

    A run that is finished is not made again: the same command goes on where it was stopped, and with more --runs it
    adds to the table.
    """

    variants: tuple[str, ...] = tuple(VARIANTS)
    """Rows of the table, beside the first, which is always there."""


def main(words: Sequence[str]) -> None:
    """Trains the missing runs, and writes quality.md and quality.json into the output directory."""
    options = Quality.of(words, "scripts.experiments.quality", test=())
    for name in options.variants:
        if name not in VARIANTS:
            raise ExperimentError(f"There is no variant {name!r}; there are {', '.join(VARIANTS)}.")
    experiment = Experiment(options)
    first = Run(FIRST, options.recipe.with_options(precision=VARIANTS[FIRST].precision))

    def rows_of(base: Recipe) -> dict[str, Run]:
        return {name: _run(name, base) for name in dict.fromkeys((FIRST, *options.variants))}

    experiment.compare(first, rows_of, partial(_write_table, experiment))


def _run(variant: str, base: Recipe) -> Run:
    changes = VARIANTS[variant]
    batches = (base.optimization.batches_per_step or 1) * changes.batches
    return Run(variant, base.with_options(precision=changes.precision, batches_per_step=batches), changes.before)


def _write_table(experiment: Experiment, runs: dict[str, list[Run]], base: Recipe) -> str:
    """Writes the results so far as Markdown and JSON, and returns the Markdown."""
    rows = {name: [experiment.figures(run) for run in over] for name, over in runs.items()}
    names = list(dict.fromkeys(figure for seeds in rows.values() for seed in seeds for figure in seed))
    shown = [name for name in names if name not in ("seed", "diverged", "parameters", "seconds")]
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


if __name__ == "__main__":
    with command("scripts.experiments.quality"):
        main(sys.argv[1:])
