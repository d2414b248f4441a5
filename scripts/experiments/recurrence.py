"""Trains recurrent encoder-decoders, which the paper replaced, and the Transformer on the same pairs of text.

    OMP_NUM_THREADS=1 python -m scripts.experiments.recurrence multi30k-en-de --train train.en.gz train.de.gz \
        --dev val.en.gz val.de.gz --output recurrence --minutes 8 --dropout 0.1 --batch-tokens 2048 \
        --batches-per-step 2 --learning-rate-scale 0.3 --warmup-steps 300 --save-steps 50

A recipe's dropout, batches and warm-up suit its full length. For a few minutes give other values, or the Transformer
has hardly begun to learn when they are over.

Everything but the architecture is the same: text, vocabulary, batches, dropout, label smoothing, checkpoint averaging
and search. The width of each recurrent model gives it about as many parameters as the Transformer. The directory gets
`table.md`, `table.json` and `pictures.png`: scores, scores on short, middle and long sources, and losses on dev.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from scripts.experiments.runs import LOWER_IS_BETTER, Experiment, ExperimentError, Options, Run, Spread, command, write
from scripts.turns import cells
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import task_for

TRANSFORMER = "transformer"
# The title of each architecture, and the recipe fields that select it.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    TRANSFORMER: ("Transformer (Vaswani et al. 2017)", {}),
    "lstm": ("LSTM, no attention (Sutskever et al. 2014)", {"cell": "lstm", "attention": "none"}),
    "gru": ("GRU, no attention (Cho et al. 2014)", {"cell": "gru", "attention": "none"}),
    "bahdanau": ("GRU, additive attention (Bahdanau et al. 2015)", {"cell": "gru", "attention": "bahdanau"}),
    "luong-dot": ("LSTM, dot (Luong et al. 2015)", {"cell": "lstm", "attention": "luong-dot"}),
    "luong-general": ("LSTM, general (Luong et al. 2015)", {"cell": "lstm", "attention": "luong-general"}),
    "luong-concat": ("LSTM, concat (Luong et al. 2015)", {"cell": "lstm", "attention": "luong-concat"}),
}
DEFAULT = (TRANSFORMER, "lstm", "bahdanau", "luong-general")
# Fields that a recurrent model lacks, or for which it has a default of its own.
NOT_RECURRENT = (
    "preset",
    "d_ff",
    "num_heads",
    "d_k",
    "d_v",
    "positional_encoding",
    "attention_dropout",
    "activation_dropout",
    "warmup_steps",
    "learning_rate",
)
LENGTHS = ("short", "middle", "long")
RESULTS = "results.json"


@dataclass(frozen=True)
class Recurrence(Options):
    """Train the Transformer and the recurrent models that it replaced on the same text, and write table and pictures.

    A run that is finished is not made again, and with more --architectures or --runs the table grows.
    """

    architectures: tuple[str, ...] = DEFAULT
    """Rows of the table: transformer, lstm, gru, bahdanau, luong-dot, luong-general, luong-concat."""
    layers: int = 2
    """Recurrent layers of the encoder, and as many of the decoder."""
    minutes: float | None = None
    """Minutes of processor time (of all threads together) that each run has; by default it has the recipe's steps."""
    runs: int = 1


@dataclass(frozen=True)
class Result:
    """The result of a run; scores by metric, on all sources and on each third of them by length."""

    architecture: str
    seed: int
    parameters: int
    d_model: int
    steps: int
    epochs: float
    train_tokens_per_second: float
    decode_tokens_per_second: float
    dev_loss: float
    scores: dict[str, float]
    by_length: dict[str, dict[str, float]]
    signatures: dict[str, str]


def main(words: Sequence[str]) -> None:
    """Trains the missing runs, and writes the table and the pictures into the output directory."""
    options = Recurrence.of(words, "scripts.experiments.recurrence")
    _check(options)
    before = None if options.minutes is None else partial(stop_after, options.minutes * 60)
    # A run with a clock has lost it when it is stopped.
    experiment = Experiment(options, resumes=before is None)
    data = options.recipe.data
    show = partial(_write, experiment, options, data.corpora("test" if data.test else "dev")[0])

    def rows_of(chosen: Recipe) -> dict[str, Run]:
        return {name: Run(name, recipe_of(name, chosen, options.layers), before) for name in options.architectures}

    # Scores are measured here, by length, so runs need none at their end.
    experiment.compare(Run(TRANSFORMER, options.recipe.with_options(test=()), before), rows_of, show)


def _check(options: Recurrence) -> None:
    if options.layers < 1 or (options.minutes is not None and options.minutes <= 0):
        raise ExperimentError("--layers must be at least 1, and --minutes above 0.")
    for name in options.architectures:
        if name not in ARCHITECTURES:
            raise ExperimentError(f"There is no architecture {name!r}; there are {', '.join(ARCHITECTURES)}.")
    if options.recipe.data.task != "translation" or options.recipe.model.architecture != "transformer":
        raise ExperimentError("The recipe has to be the Transformer's, for pairs of text.")


def recipe_of(name: str, transformer: Recipe, layers: int) -> Recipe:
    """Returns the recipe with another architecture, as wide as gives it about the Transformer's parameters."""
    _, fields = ARCHITECTURES[name]
    if name == TRANSFORMER:
        return transformer
    changes: dict[str, Any] = {
        **dict.fromkeys(NOT_RECURRENT),
        **fields,
        "architecture": "recurrent",
        "encoder_layers": layers,
        "decoder_layers": layers,
        "learning_rate_scale": 1.0,
    }
    recipe = transformer.with_options(**changes)
    wanted = parameters(transformer)
    low, high = 1, 256  # In units of 8.
    while low < high:
        middle = (low + high) // 2
        if parameters(recipe.with_options(d_model=8 * middle)) < wanted:
            low = middle + 1
        else:
            high = middle
    widths = [8 * max(1, low - 1), 8 * low]
    nearest = min(widths, key=lambda width: abs(parameters(recipe.with_options(d_model=width)) - wanted))
    return recipe.with_options(d_model=nearest)


def parameters(recipe: Recipe) -> int:
    """Counts the parameters of the recipe's model, without allocating them."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    with torch.device("meta"):
        return AutoModelForSeq2SeqLM.from_config(task_for(recipe).config(recipe)).num_parameters()


def stop_after(seconds: float) -> None:
    """Makes this process's trainer end after this much processor time, just as it ends at its last step."""
    from vanilla_transformer.training.loop import TrainingLoop

    ends_anyway: Callable[[TrainingLoop], bool] = TrainingLoop.is_over.fget  # type: ignore[attr-defined]
    start, last_step = time.process_time(), None

    def is_over(loop: TrainingLoop) -> bool:
        nonlocal last_step
        # Ends one step after the current one, so that every call within a step gets the same answer.
        if last_step is None and time.process_time() - start >= seconds:
            last_step = loop.progress.step + 2
        return ends_anyway(loop) or (last_step is not None and loop.progress.step >= last_step)

    TrainingLoop.is_over = property(is_over)  # type: ignore[assignment, method-assign]


def _result(experiment: Experiment, run: Run, name: str, options: Recurrence, corpus: Any) -> Result:
    """Measures a run once: values from its summary, and scores of the model's translations of the corpus."""
    file = experiment.directory / run.name / RESULTS
    if file.exists():
        return Result(**json.loads(file.read_text(encoding="utf-8")))
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

    from vanilla_transformer.data.corpus import read_corpus
    from vanilla_transformer.evaluation.scoring import evaluate_translation, score_translations
    from vanilla_transformer.translation import Translator

    path = experiment.model(run)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    recipe = load_recipe(path / "recipe.yaml")
    metrics = list(recipe.evaluation.metrics or ())
    rows = read_corpus(corpus, form=task_for(recipe).form)
    start = time.process_time()
    evaluation = evaluate_translation(Translator(model, tokenizer, precision="float32"), rows, metrics)
    seconds = time.process_time() - start
    decoded = evaluation.figures["target_tokens_per_second"] * evaluation.figures["seconds"]
    sources = list(rows["source"])
    thirds = by_length(sources, lambda text: len(tokenizer(text)["input_ids"]))
    translated = dict(zip(sources, evaluation.predictions, strict=True))

    def scores(rows: Sequence[int]) -> dict[str, float]:
        of = [[texts[row] for row in rows] for texts in (sources, evaluation.references)]
        return {name: score.value for name, score in score_translations(metrics, translated, *of).items()}

    summary = experiment.summary(run)
    spent = (options.minutes * 60) if options.minutes else summary["seconds"] * torch.get_num_threads()
    result = Result(
        architecture=name,
        seed=run.recipe.optimization.seed,
        parameters=summary["parameters"],
        d_model=AutoConfig.from_pretrained(path).d_model,
        steps=summary["steps"],
        epochs=summary["epochs"],
        train_tokens_per_second=summary["target_tokens"] / spent,
        decode_tokens_per_second=decoded / seconds,
        dev_loss=summary["last_dev_loss"],
        scores={name: score.value for name, score in evaluation.scores.items()},
        by_length={length: scores(rows) for length, rows in zip(LENGTHS, thirds, strict=True)},
        signatures={name: score.signature for name, score in evaluation.scores.items()},
    )
    write(file, json.dumps(dataclasses.asdict(result), indent=1) + "\n")
    return result


def by_length(sources: Sequence[str], length: Callable[[str], int]) -> list[list[int]]:
    """Returns the rows of the shortest, middle and longest third of the sources; ties stay in order."""
    order = sorted(range(len(sources)), key=lambda row: length(sources[row]))
    third = len(order) / len(LENGTHS)
    return [order[round(number * third) : round((number + 1) * third)] for number in range(len(LENGTHS))]


def _write(experiment: Experiment, options: Recurrence, corpus: Any, runs: dict[str, list[Run]], base: Recipe) -> str:
    """Writes the results so far as table, JSON and pictures, and returns the table."""
    diverged = [run.name for over in runs.values() for run in over if experiment.has_diverged(run)]
    ended = {name: [run for run in over if run.name not in diverged] for name, over in runs.items()}
    results = {
        name: [_result(experiment, run, name, options, corpus) for run in over] for name, over in ended.items() if over
    }
    text = markdown(results, diverged, options.minutes)
    write(experiment.directory / "table.md", text)
    rows = [dataclasses.asdict(result) for of in results.values() for result in of]
    write(experiment.directory / "table.json", json.dumps(rows, indent=1) + "\n")
    _draw(experiment, results, {name: experiment.records(ended[name][0]) for name in results})
    return text


def markdown(results: dict[str, list[Result]], diverged: Sequence[str], minutes: float | None) -> str:
    """Returns a row for each architecture: scores, scores on short, middle and long sources, size and speed."""
    first = next(iter(results.values()))[0]
    metrics = list(first.scores)
    head = ["architecture", "parameters", "width", "seeds", "steps", "epochs", "dev loss", *metrics]
    head += [f"{metrics[0]}, {length} sources" for length in LENGTHS] if metrics else []
    head += ["training, tokens/s", "decoding, tokens/s"]
    lines = [cells(head), cells(["---"] * len(head))]
    for name, of in results.items():
        scores = [Spread.from_values([result.scores[metric] for result in of]) for metric in metrics]
        parts = [
            Spread.from_values([result.by_length[length][metrics[0]] for result in of])
            for length in (LENGTHS if metrics else ())
        ]
        size = [f"{of[0].parameters:,}", of[0].d_model, len(of), f"{_mean(of, 'steps'):,.0f}"]
        speed = [f"{_mean(of, field):,.0f}" for field in ("train_tokens_per_second", "decode_tokens_per_second")]
        losses = Spread.from_values([result.dev_loss for result in of])
        row = [ARCHITECTURES[name][0], *size, f"{_mean(of, 'epochs'):.1f}", losses, *scores, *parts]
        lines.append(cells([*row, *speed]))
    budget = "the recipe's steps" if minutes is None else f"{minutes:g} minutes of processor time"
    lines += [
        "",
        f"Mean ± standard deviation over the seeds; each run had {budget}. Tokens are target tokens, in a second of "
        "processor time. Short, middle and long: thirds of the sources by their number of tokens.",
        "",
        *(f"{name}: {signature}" for name, signature in first.signatures.items()),
        *([f"Diverged: {', '.join(diverged)}."] if diverged else []),
    ]
    return "\n".join([*lines, ""])


def _mean(results: Sequence[Result], field: str) -> float:
    return sum(getattr(result, field) for result in results) / len(results)


def _draw(experiment: Experiment, results: dict[str, list[Result]], records: dict[str, list[dict[str, Any]]]) -> None:
    """Draws the losses over time of each architecture's first seed, and the score by source length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    losses, lengths = figure.subplots(1, 2)
    metric = next(iter(next(iter(results.values()))[0].scores), None)
    for name, of in results.items():
        points = [
            (record["target_tokens"] / of[0].train_tokens_per_second / 60, record["dev_loss"])
            for record in records[name]
            if "dev_loss" in record
        ]
        losses.plot(*zip(*points, strict=True), label=ARCHITECTURES[name][0])
        if metric is not None:
            means = [sum(result.by_length[length][metric] for result in of) / len(of) for length in LENGTHS]
            lengths.plot(LENGTHS, means, marker="o", label=ARCHITECTURES[name][0])
    losses.set(xlabel="minutes of processor time", ylabel="loss on dev, nats per target token")
    better = "lower is better" if metric in LOWER_IS_BETTER else "higher is better"
    lengths.set(xlabel="sources, in thirds by their length", ylabel=f"{metric} ({better})")
    for axes in (losses, lengths):
        axes.grid(visible=True, alpha=0.3)
    losses.legend()
    figure.savefig(experiment.directory / "pictures.png", dpi=120)


if __name__ == "__main__":
    with command("scripts.experiments.recurrence"):
        main(sys.argv[1:])
