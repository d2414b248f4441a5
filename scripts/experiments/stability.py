"""Tests whether the paper's recipe diverges or stalls: first steps of base and big at several learning rates."""

import dataclasses
import itertools
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from tyro.conf import arg

from scripts.experiments.runs import Experiment, ExperimentError, Run, cells, command, say, write
from vanilla_transformer.recipe.schema import Recipe

# The share of a curve that counts as its end; the nats above its best at which it has diverged; and the nats below the
# loss of token frequencies alone at which it has learned more than them.
LAST_SHARE = 0.1
BROKEN_OUT = 1.0
LEARNED = 0.1
ROWS_AT_A_TIME = 10_000


@dataclass(frozen=True)
class Stability:
    """Train the first steps of base and big at the paper's learning rate and at multiples of it.

    A table and a picture say of each run whether it learns, stalls or diverges. The paper's rate rises over 4,000
    steps (section 5.3), so that the first 1,000 never see its peak: a second, shorter warm-up puts the peak into them.
    A run that is finished is not made again; one that was stopped goes on with the same command.
    """

    train: tuple[str, ...]
    """Pairs of text in any form that `vanilla-transformer train` takes."""
    output: Path
    """Directory for the runs, stability.md, stability.json and stability.png."""
    presets: tuple[str, ...] = ("base", "big")
    """Shapes by name."""
    scales: tuple[float, ...] = (1.0, 2.0, 4.0)
    """Factors on the learning rate of Eq. 3."""
    warmup_steps: tuple[int, ...] = (4000,)
    """Steps over which the rate rises, one set of runs for each."""
    max_steps: int = 1000
    """Steps of each run."""
    batch_tokens: int = 28_000
    """Tokens of the longer side in a step, padding included; so many hold some 25,000 of each (section 5.1)."""
    batches_per_step: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    """Batches that a step is cut into (default: chosen from the device's memory)."""
    tokenizer_algorithm: Literal["bpe", "wordpiece"] = "bpe"
    """Algorithm that learns the sub-words."""
    vocab_size: int = 37_000
    """Types in the vocabulary."""
    source_column: Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")] = None
    """Column of a table to translate from (default: the first)."""
    target_column: Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")] = None
    """Column of a table to translate into (default: the second)."""
    max_length: int = 256
    """Pairs with more tokens than this on a side are left out."""
    precision: Literal["bfloat16", "float32"] = "bfloat16"
    """Numbers in matrix products."""
    seed: int = 1
    """Start of all random numbers."""
    log_steps: int = 10
    """Steps in each point of a curve."""
    save_steps: int = 250
    """Steps between checkpoints, of which a large model's take gigabytes until its run is over."""
    jobs: int = 1
    """Runs at a time, which share the cores or OMP_NUM_THREADS."""


@dataclass(frozen=True)
class Setting:
    """Shape, learning-rate factor and warm-up of a run."""

    preset: str
    warmup_steps: int
    scale: float

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.preset}-warmup{self.warmup_steps}-rate{self.scale:g}"


@dataclass(frozen=True)
class Curve:
    """The course of a run, and the loss of a model that knows only the token frequencies."""

    setting: Setting
    steps: list[int]
    losses: list[float]
    highest_rate: float
    seconds_per_step: float
    frequencies_alone: float
    diverged: bool

    @property
    def end(self) -> float:
        """Mean loss of the last points."""
        last = math.ceil(len(self.losses) * LAST_SHARE)
        return statistics.mean(self.losses[-last:]) if last else math.nan

    @property
    def largest_rise(self) -> float:
        """Largest rise in nats from the best point so far to a later one."""
        best = itertools.accumulate(self.losses, min)
        return max((loss - least for loss, least in zip(self.losses, best, strict=True)), default=0.0)

    @property
    def verdict(self) -> str:
        """Verdict on the run; a loss that came down again is no divergence, but counts in the largest rise."""
        if self.diverged:
            return f"diverges: no number any more after step {self.steps[-1] if self.steps else 0:,}"
        if self.end > min(self.losses) + BROKEN_OUT:
            return "diverges: ends far above its best"
        return "stalls" if self.end > self.frequencies_alone - LEARNED else "learns"


def main(words: Sequence[str]) -> None:
    """Trains the missing runs, and writes the table and the picture."""
    options = tyro.cli(Stability, prog="scripts.experiments.stability", args=words)
    _check(options)
    directory = options.output.resolve()
    experiment = Experiment(directory, options.jobs)
    tokenizer, token_counts = _corpus(options, directory)
    runs = {
        setting: _run(options, str(tokenizer), setting)
        for setting in itertools.starmap(
            Setting, itertools.product(options.presets, options.warmup_steps, options.scales)
        )
    }

    def finish(run: Run) -> None:
        experiment.drop_weights(run)
        _report(experiment, runs, token_counts)

    experiment.train(list(runs.values()), done=finish)
    print(_report(experiment, runs, token_counts))


def _check(options: Stability) -> None:
    from vanilla_transformer import VanillaTransformerConfig

    for name in ("max_steps", "jobs", "log_steps"):
        if getattr(options, name) < 1:
            raise ExperimentError(f"--{name.replace('_', '-')} must be at least 1.")
    for preset in options.presets:
        VanillaTransformerConfig.from_preset(preset)


def _corpus(options: Stability, directory: Path) -> tuple[Path, list[int]]:
    """Returns the directory of the tokenizer that all runs share, and the frequencies of the target tokens."""
    from vanilla_transformer.data.token_corpus import PreparedCorpus
    from vanilla_transformer.training.inputs import gather_inputs
    from vanilla_transformer.training.run_directory import RunDirectory

    shared = RunDirectory(directory / "corpus")
    shared.path.mkdir(parents=True, exist_ok=True)
    inputs = gather_inputs(_recipe(options), shared, say)
    counts, corpus = np.zeros(len(inputs.tokenizer), dtype=np.int64), inputs.train
    assert isinstance(corpus, PreparedCorpus)
    for start in range(0, len(corpus), ROWS_AT_A_TIME):
        rows = corpus.rows(np.arange(start, min(start + ROWS_AT_A_TIME, len(corpus))))
        counts += np.bincount(np.concatenate(rows["target"]), minlength=len(counts))
    return shared.path, counts.tolist()


def frequencies_alone(token_counts: Sequence[int], label_smoothing: float) -> float:
    """Returns the lowest training loss, in nats, of a model that predicts the same probabilities everywhere.

    It is the entropy of the token frequencies, smoothed as the labels are (section 5.4).
    """
    frequencies = np.array(token_counts) / sum(token_counts)
    smoothed = (1 - label_smoothing) * frequencies + label_smoothing / len(frequencies)
    present = smoothed[smoothed > 0]
    return float(-(present * np.log(present)).sum())


def _recipe(options: Stability) -> Recipe:
    """Returns the shared settings of all runs; all others are the paper's."""
    same = Recipe().options.keys() & vars(options).keys()
    given = {name: getattr(options, name) for name in same - {"output", "warmup_steps"}}
    return Recipe.of(**given, metrics=(), average_checkpoints=1)


def _run(options: Stability, tokenizer: str, setting: Setting) -> Run:
    recipe = _recipe(options).with_options(
        tokenizer=tokenizer,
        vocab_size=None,
        preset=setting.preset,
        warmup_steps=setting.warmup_steps,
        learning_rate_scale=setting.scale,
    )
    return Run(setting.name, recipe)


def _report(experiment: Experiment, runs: dict[Setting, Run], token_counts: Sequence[int]) -> str:
    """Writes the results so far as table, JSON and picture, and returns the table."""
    curves = [
        _curve(experiment, run, setting, token_counts) for setting, run in runs.items() if experiment.is_over(run)
    ]
    text = markdown(curves)
    write(experiment.directory / "stability.md", text)
    verdicts = [{**dataclasses.asdict(curve), "end": curve.end, "verdict": curve.verdict} for curve in curves]
    write(experiment.directory / "stability.json", json.dumps(verdicts, indent=1) + "\n")
    draw(curves, experiment.directory / "stability.png")
    return text


def _curve(experiment: Experiment, run: Run, setting: Setting, token_counts: Sequence[int]) -> Curve:
    from vanilla_transformer import VanillaTransformerConfig

    records = experiment.records(run)
    points = [record for record in records if "loss" in record]
    smoothing = VanillaTransformerConfig.from_preset(setting.preset).label_smoothing
    return Curve(
        setting,
        steps=[record["step"] for record in points],
        losses=[record["loss"] for record in points],
        highest_rate=max((record["learning_rate"] for record in points), default=math.nan),
        seconds_per_step=points[-1]["seconds"] / points[-1]["step"] if points else math.nan,
        frequencies_alone=frequencies_alone(token_counts, smoothing),
        diverged=experiment.has_diverged(run),
    )


def markdown(curves: Sequence[Curve]) -> str:
    """Returns the table, one line per run."""
    head = ["shape", "warm-up", "rate", "highest rate", "steps", "loss at the end", "frequencies alone"]
    head += ["largest rise", "verdict", "seconds a step"]
    lines = [cells(head), cells(["---"] * len(head))]
    for curve in curves:
        setting = curve.setting
        rate = f"{setting.scale:g} × Eq. 3"
        figures = [f"{curve.highest_rate:.2e}", f"{curve.steps[-1] if curve.steps else 0:,}", f"{curve.end:.3f}"]
        figures += [f"{curve.frequencies_alone:.3f}", f"{curve.largest_rise:.3f}", curve.verdict]
        row = [setting.preset, f"{setting.warmup_steps:,}", rate, *figures, f"{curve.seconds_per_step:.2f}"]
        lines.append(cells(row))
    note = (
        "Losses are those of training, in nats, with dropout and label smoothing; the end is the mean of the last "
        f"{LAST_SHARE:.0%} of the steps. A run stalls if its end is not {LEARNED:g} nats below what the frequencies "
        f"of the tokens give alone, and diverges if it is no number any more or ends more than {BROKEN_OUT:g} nat "
        "above its best."
    )
    return "\n".join([*lines, "", note, ""])


def draw(curves: Sequence[Curve], file: Path) -> None:
    """Draws the losses over the steps: a column for each shape, a row for each warm-up."""
    from matplotlib.figure import Figure

    presets = list(dict.fromkeys(curve.setting.preset for curve in curves))
    warmups = list(dict.fromkeys(curve.setting.warmup_steps for curve in curves))
    size = (1 + 5 * len(presets), 0.5 + 3.5 * len(warmups))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(warmups), len(presets), sharex=True, sharey=True, squeeze=False)
    for (row, warmup_steps), (column, preset) in itertools.product(enumerate(warmups), enumerate(presets)):
        axes = panels[row, column]
        here = [c for c in curves if (c.setting.preset, c.setting.warmup_steps) == (preset, warmup_steps)]
        for curve in here:
            axes.plot(curve.steps, curve.losses, label=f"{curve.setting.scale:g} × Eq. 3: {curve.verdict}")
        for level in {curve.frequencies_alone for curve in here}:
            axes.axhline(level, color="gray", linestyle="--", label="frequencies alone")
        axes.set_title(f"{preset}, warm-up {warmup_steps:,}")
        axes.grid(visible=True, alpha=0.3)
        if here:
            axes.legend(fontsize="small")
    losses = [loss for curve in curves for loss in curve.losses]
    if losses:
        # Keeps a diverging curve from flattening the others.
        first = max(curve.losses[0] for curve in curves if curve.losses)
        axes.set_ylim(min(*losses, *(curve.frequencies_alone for curve in curves)) - 0.5, first + 1)
    figure.supxlabel("step")
    figure.supylabel("training loss, nats a target token")
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    with command("scripts.experiments.stability"):
        main(sys.argv[1:])
