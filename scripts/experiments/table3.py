"""Trains rows of the paper's Table 3 around a small base, with several seeds, and compares them with the paper's."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from scripts.experiments.runs import LOWER_IS_BETTER, Experiment, ExperimentError, Options, Run, Spread, command, write
from scripts.turns import cells, report
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe


@dataclass(frozen=True)
class Published:
    """A row of Table 3: perplexity and BLEU on newstest2013, and millions of parameters if given."""

    perplexity: float
    bleu: float
    parameters: int | None = None


TABLE = {
    "base": Published(4.92, 25.8, 65),
    "A-h1": Published(5.29, 24.9),
    "A-h4": Published(5.00, 25.5),
    "A-h16": Published(4.91, 25.8),
    "A-h32": Published(5.01, 25.4),
    "B-dk16": Published(5.16, 25.1, 58),
    "B-dk32": Published(5.01, 25.4, 60),
    "C-n2": Published(6.11, 23.7, 36),
    "C-n4": Published(5.19, 25.3, 50),
    "C-n8": Published(4.88, 25.5, 80),
    "C-d256": Published(5.75, 24.5, 28),
    "C-d1024": Published(4.66, 26.0, 168),
    "C-dff1024": Published(5.12, 25.4, 53),
    "C-dff4096": Published(4.75, 26.2, 90),
    "D-dropout0.0": Published(5.77, 24.6),
    "D-dropout0.2": Published(4.95, 25.5),
    "D-smoothing0.0": Published(4.67, 25.3),
    "D-smoothing0.2": Published(5.47, 25.7),
    "E": Published(4.92, 25.7),
}
FIELDS = {
    "encoder_layers": "encoder layers",
    "decoder_layers": "decoder layers",
    "d_model": "d_model",
    "d_ff": "d_ff",
    "num_heads": "h",
    "d_k": "d_k",
    "d_v": "d_v",
    "dropout": "dropout",
    "label_smoothing": "smoothing",
    "positional_encoding": "positions",
}


@dataclass(frozen=True)
class Table3(Options):
    """Train rows of Table 3 around a small base, with several seeds, and write the table.

    What a row changes is changed by the paper's factor: half the heads are half of the base's own. As in the paper,
    the scores are those of `dev` and of the last checkpoint. A run that is finished is not made again: the same
    command goes on where it was stopped, and with more --rows or --runs it adds to the table.
    """

    rows: tuple[str, ...] = ("A", "B", "D", "E")
    """Letters of the table, or single rows such as A-h1 or C-dff1024 by their size in the paper."""


@dataclass(frozen=True)
class Result:
    """The result of a row: each figure over the seeds, and the number of seeds that diverged."""

    row: str
    here: str
    parameters: int | None
    figures: dict[str, Spread | None]
    seeds: list[dict[str, Any]]


def main(words: Sequence[str]) -> None:
    """Trains the missing runs, and writes table.md and table.json into the output directory."""
    # Section 6.2: averages no checkpoints, and scores only `dev`.
    options = Table3.of(words, "scripts.experiments.table3", average_checkpoints=1, test=())
    rows = chosen_rows(options.rows)
    experiment = Experiment(options)

    def rows_of(base: Recipe) -> dict[str, Run]:
        return {row: Run(row, recipe) for row, recipe in {"base": base, **_scaled(rows, base)}.items()}

    experiment.compare(Run("base", options.recipe), rows_of, partial(_write_table, experiment))


def chosen_rows(names: Sequence[str]) -> list[str]:
    """Returns the rows with these letters and names, in the paper's order."""
    for name in names:
        if name not in TABLE and name not in {row[0] for row in TABLE if row != "base"}:
            raise ExperimentError(f"There is no row {name!r} in Table 3; there are {', '.join(TABLE)}, and A to E.")
    return [row for row in TABLE if row != "base" and (row in names or row[0] in names)]


def scaled(row: str, base: Recipe) -> dict[str, Any]:
    """Returns the row's changes to the base: those to the paper's base, by the same factor.

    One head stays one head, and h·d_k and h·d_v stay constant where the row changes h.

    Raises:
        ExperimentError: The base is too small for the change.
    """
    published = _published_changes(row)
    changes: dict[str, Any] = {}
    for field, (ours, theirs) in published.items():
        value = base[field]
        if field == "positional_encoding":
            changes[field] = theirs
        elif field in ("dropout", "label_smoothing"):
            changes[field] = value * theirs / ours
        elif not (field in ("d_k", "d_v") and "num_heads" in published):
            changes[field] = 1 if (field, theirs) == ("num_heads", 1) else round(value * theirs / ours)
    if "num_heads" in changes:
        heads = base.model.num_heads or 1
        for field in ("d_k", "d_v"):
            changes[field], rest = divmod(heads * base[field], max(1, changes["num_heads"]))
            if rest:
                raise ExperimentError(f"{changes['num_heads']} heads do not share {field} of {heads} heads evenly")
    for field, value in changes.items():
        if value in (0, None) and field not in ("dropout", "label_smoothing"):
            raise ExperimentError(f"{field} {base[field]} is too small to be scaled")
    if all(value == base[field] for field, value in changes.items()):
        raise ExperimentError("it is the base itself")
    return changes


def _scaled(rows: Sequence[str], base: Recipe) -> dict[str, Recipe]:
    """Returns the recipes of the rows to which the base can be scaled, and reports those left out."""
    recipes: dict[str, Recipe] = {}
    for row in rows:
        try:
            recipe = base.with_options(**scaled(row, base))
            twin = next((name for name, other in recipes.items() if other == recipe), None)
            if twin is not None:
                raise ExperimentError(f"it is {twin} as well")
            recipes[row] = recipe
        except ValueError as error:
            report(f"Row {row} is left out: {str(error).rstrip('.')}.")
    return recipes


def _published_changes(row: str) -> dict[str, tuple[Any, Any]]:
    """Returns the fields in which a row differs from the paper's base, as (base, row)."""
    from vanilla_transformer import VanillaTransformerConfig

    base = VanillaTransformerConfig.from_preset("base")
    config = VanillaTransformerConfig.from_preset("base" if row == "base" else f"table3-{row}")
    pairs = {field: (getattr(base, field), getattr(config, field)) for field in FIELDS}
    return {field: (ours, theirs) for field, (ours, theirs) in pairs.items() if ours != theirs}


def _write_table(experiment: Experiment, runs: dict[str, list[Run]], base: Recipe) -> str:
    """Writes the results so far as Markdown and JSON, and returns the Markdown."""
    results = [_result(experiment, row, over) for row, over in runs.items()]
    text = markdown(results, base)
    scores = experiment.summary(runs["base"][0])["scores"].get("dev", [])
    text += "".join(f"{score['name']}: {score['signature']}\n" for score in scores)
    write(experiment.directory / "table.md", text)
    rows = [{**dataclasses.asdict(result), "paper": dataclasses.asdict(TABLE[result.row])} for result in results]
    write(experiment.directory / "table.json", json.dumps({"base": base.given(), "rows": rows}, indent=1) + "\n")
    return text


def _result(experiment: Experiment, row: str, runs: Sequence[Run]) -> Result:
    seeds = [experiment.figures(run) for run in runs]
    recipe = load_recipe(experiment.model(runs[0]) / "recipe.yaml")
    names = ["perplexity", *(recipe.evaluation.metrics or ())]
    figures = {name: Spread.from_values([seed[name] for seed in seeds if name in seed]) for name in names}
    here = _in_words({field: recipe[field] for field in FIELDS if row == "base" or field in _published_changes(row)})
    parameters = next((seed["parameters"] for seed in seeds if "parameters" in seed), None)
    return Result(row, here, parameters, figures, seeds)


def _in_words(values: dict[str, Any]) -> str:
    words = {FIELDS[field]: f"{value:g}" if isinstance(value, float) else value for field, value in values.items()}
    if "encoder_layers" in values and values["encoder_layers"] == values["decoder_layers"]:
        words = {"N": values["encoder_layers"], **words}
        del words["encoder layers"], words["decoder layers"]
    return ", ".join(f"{name} {value}" for name, value in words.items())


def markdown(results: Sequence[Result], base: Recipe) -> str:
    """Returns the table beside the paper's, and below it the direction in which each row differs from its base."""
    metrics = [name for name in results[0].figures if name != "perplexity"]
    head = ["row", "here", "parameters", "seeds", "dev perplexity", *metrics]
    head += ["in the paper", "PPL", "BLEU", "10⁶ parameters"]
    lines = [cells(head), cells(["---"] * len(head))]
    for result in results:
        paper = TABLE[result.row]
        changes = {field: theirs for field, (_, theirs) in _published_changes(result.row).items()}
        diverged = sum(seed["diverged"] for seed in result.seeds)
        seeds = f"{len(result.seeds)}" + (f", {diverged} diverged" if diverged else "")
        figures = ["" if figure is None else str(figure) for figure in result.figures.values()]
        size = "" if result.parameters is None else f"{result.parameters:,}"
        published = [_in_words(changes) or "base", f"{paper.perplexity:.2f}", paper.bleu, paper.parameters or ""]
        lines.append(cells([result.row, result.here, size, seeds, *figures, *published]))
    steps = f"{base.optimization.max_steps:,} steps of up to {base.optimization.batch_tokens:,} tokens a side"
    lines += ["", f"Mean ± standard deviation over the seeds; {steps}, vocabulary {base.tokenizer.vocab_size:,}."]
    return "\n".join([*lines, "", *_directions(results), ""])


def _directions(results: Sequence[Result]) -> list[str]:
    base, *others = results
    names = list(base.figures)
    head = ["against base", *names, "PPL in the paper", "BLEU in the paper"]
    lines = [cells(head), cells(["---"] * len(head))]
    for result in others:
        here = [_direction(name, _differences(name, base, result)) for name in names]
        paper, papers_base = TABLE[result.row], TABLE["base"]
        perplexity = _in_the_paper("perplexity", paper.perplexity - papers_base.perplexity)
        bleu = _in_the_paper("bleu", paper.bleu - papers_base.bleu)
        lines.append(cells([result.row, *here, perplexity, bleu]))
    return [
        *lines,
        "",
        "Differences from the base's run with the same seed, which sees the data in the same order: mean ± standard",
        "deviation over the seeds. Better and worse: by more than that deviation, as chance alone is in 39% of cases",
        "with two seeds and in 23% with three.",
    ]


def _differences(name: str, base: Result, row: Result) -> list[float]:
    """Returns row minus base for each seed that has both figures."""
    bases = {seed["seed"]: seed[name] for seed in base.seeds if name in seed}
    return [seed[name] - bases[seed["seed"]] for seed in row.seeds if name in seed and seed["seed"] in bases]


def _direction(name: str, differences: Sequence[float]) -> str:
    spread = Spread.from_values(differences)
    if spread is None:
        return ""
    if spread.deviation is None:
        return f"{spread.mean:+.3f}, one seed"
    amount = f"{spread.mean:+.3f} ± {spread.deviation:.3f}"
    if abs(spread.mean) <= spread.deviation:
        return f"within ({amount})"
    return f"{_judgement(name, spread.mean)} ({amount})"


def _in_the_paper(name: str, difference: float) -> str:
    if round(difference, 6) == 0:
        return "the same"
    return f"{_judgement(name, difference)} ({difference:+.3g})"


def _judgement(name: str, difference: float) -> str:
    return "better" if (difference < 0) == (name in LOWER_IS_BETTER) else "worse"


if __name__ == "__main__":
    with command("scripts.experiments.table3"):
        main(sys.argv[1:])
