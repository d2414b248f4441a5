"""Measures training against what a user would use instead: same model, same text, in turns on the same machine.

    python -m scripts.benchmarks.train train.en train.de --preset base --vocab-size 10000 --threads 2
    python -m scripts.benchmarks.train train.txt --task language-modeling --preset base --vocab-size 10000
    python -m scripts.benchmarks.train train.txt --task masked-language-modeling --preset base --vocab-size 10000

Each contestant is a process of its own and takes some steps in its turn, several times over, while the others wait.
Tokens that are not padding count, for pairs those of the target, and ratios are taken within a round. A decoder-only
model learns from continuous text in blocks, an encoder-only one from a text per line.
"""

import argparse
import dataclasses
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers

from scripts.benchmarks.training_contestants import (
    CONTESTANTS,
    LANGUAGE_MODELING,
    OURS,
    PEAK,
    TASKS,
    WITHOUT_END,
    Job,
    take_part,
)
from scripts.experiments.runs import command
from scripts.turns import Contest, cells, report, spread
from vanilla_transformer.data.sources import parse_corpora
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.choices import device_facts
from vanilla_transformer.training.inputs import gather_inputs
from vanilla_transformer.training.run_directory import RunDirectory

SIZES = ("d_model", "d_ff", "num_heads", "encoder_layers", "decoder_layers")
Turn = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Results:
    """The turns of each contestant, in rounds, and the reasons of those that failed."""

    turns: dict[str, list[Turn]]
    failures: dict[str, str]


def measure(names: Sequence[str], job: Job, *, steps: int, warmup_steps: int, repeats: int) -> Results:
    """Lets the contestants take turns; each round begins with another one."""
    failures: dict[str, str] = {}
    turns: dict[str, list[Turn]] = {name: [] for name in (PEAK, *names)}
    with ExitStack() as stack:
        contests = [Contest(name, take_part, job) for name in turns]
        for contest in contests:
            stack.callback(contest.end)
        for number in range(-1, repeats):
            for contest in [*contests[number % len(contests) :], *contests[: number % len(contests)]]:
                if contest.name in failures:
                    continue
                # The first round warms up, in turns too: one contestant's compiler must not slow down the others.
                ready = contest.answer() if number < 0 else {}
                turn = contest.ask(warmup_steps if number < 0 else steps) | ready
                if "failed" in turn:
                    failures[contest.name], turns[contest.name] = turn["failed"], []
                    report(f"{contest.name} failed: {turn['failed']}")
                elif number >= 0:
                    turns[contest.name].append(turn)
                    if contest.name != PEAK:
                        report(f"round {number + 1} of {repeats}, {contest.name}: {_rate(turn):,.0f} tokens/s")
    return Results(turns, failures)


def _rate(turn: Turn) -> float:
    return float(turn["tokens"] / turn["seconds"])


def table(results: Results) -> str:
    """Formats the figures of each contestant over all its turns as Markdown."""
    head = ("", "tokens/s", "ours against it", "padding", "between steps", "share of peak", "peak memory")
    lines = [cells(head), f"|{'---|' * len(head)}"]
    peak = max((turn["peak"] for turn in results.turns[PEAK]), default=float("nan"))
    ours = [_rate(turn) for turn in results.turns.get(OURS, [])]
    for name, turns in results.turns.items():
        if name == PEAK or not turns:
            continue
        seconds = sum(turn["seconds"] for turn in turns)
        rates = [_rate(turn) for turn in turns]
        ratios = [mine / rate for mine, rate in zip(ours, rates, strict=True)] if ours and name != OURS else []
        figures = (
            CONTESTANTS[name].words,
            spread(rates, 0),
            spread(ratios, 2) if ratios else "",
            f"{statistics.fmean(turn['padding'] for turn in turns):.1%}",
            f"{sum(turn['between'] * turn['seconds'] for turn in turns) / seconds:.1%}",
            f"{sum(turn['flops'] for turn in turns) / seconds / peak:.1%}",
            f"{max(turn['memory'] for turn in turns) / 1e9:.2f} GB",
        )
        lines.append(cells(figures))
    failed = {CONTESTANTS[name].words if name in CONTESTANTS else name: why for name, why in results.failures.items()}
    return "\n".join([*lines, *(f"\n{words}: {why}" for words, why in failed.items())])


def prepared(arguments: argparse.Namespace, directory: Path) -> Job:
    """Tokenizes the text, and settles the recipe."""
    run = RunDirectory(directory)
    run.path.mkdir(parents=True, exist_ok=True)
    sizes = {name: getattr(arguments, name) for name in SIZES}
    recipe = Recipe.of(
        task=arguments.task,
        documents="packed" if arguments.task == LANGUAGE_MODELING else "lines",
        max_length=arguments.max_length,
        train=parse_corpora(list(map(str, arguments.text))),
        vocab_size=arguments.vocab_size,
        preset=arguments.preset,
        dropout=arguments.dropout,
        label_smoothing=arguments.label_smoothing if arguments.task == "translation" else 0.0,
        batch_tokens=arguments.batch_tokens,
        batches_per_step=arguments.batches_per_step,
        max_steps=WITHOUT_END,
        warmup_steps=4000,
        learning_rate_scale=1.0,
        save_steps=WITHOUT_END,
        eval_steps=WITHOUT_END,
        output=str(directory),
        **sizes,
    )
    vocab_size = len(gather_inputs(recipe, run, report).tokenizer)
    precision = arguments.precision
    if precision == "auto":
        device = torch.accelerator.current_accelerator() or torch.device("cpu")
        precision = "bfloat16" if device_facts(device, 1).bfloat16 else "float32"
    resolved = recipe.with_options(vocab_size=vocab_size, precision=precision, metrics=())
    return Job(resolved, directory, arguments.threads)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="*", help="two files, line by line source and target; or one text")
    parser.add_argument("--task", choices=TASKS, default=TASKS[0])
    parser.add_argument("--directory", type=Path, help="keeps the tokens for the next time")
    parser.add_argument("--preset", default="base")
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="instead of the preset's")
    parser.add_argument("--vocab-size", type=int, default=10_000)
    parser.add_argument("--max-length", type=int, default=256, help="most tokens of a row")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--label-smoothing", type=float, default=0.1, help="of translation")
    parser.add_argument("--batch-tokens", type=int, default=4096, help="most tokens of a side in a step")
    parser.add_argument("--batches-per-step", type=int, default=2)
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto", help="ours")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=5, help="in a turn")
    parser.add_argument("--warmup-steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--contestants", nargs="+", choices=list(CONTESTANTS), help="by default all for the task")
    arguments = parser.parse_args(words)
    files = 2 if arguments.task == "translation" else 1
    if len(arguments.text) != files:
        wanted = "two files of text, the source and the target" if files == 2 else "one file of text"
        parser.error(f"name {wanted}")
    able = [name for name, contestant in CONTESTANTS.items() if arguments.task in contestant.tasks]
    arguments.contestants = arguments.contestants or able
    if others := [name for name in arguments.contestants if name not in able]:
        parser.error(f"{', '.join(others)} is not for {arguments.task}: choose from {', '.join(able)}")
    return arguments


def main(words: Sequence[str] | None = None) -> None:
    """Measures what the command line asks for, and prints a table."""
    arguments = _arguments(words)
    with command("scripts.benchmarks.train"):
        with ExitStack() as stack:
            directory = arguments.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            job = prepared(arguments, directory.absolute())
            results = measure(
                arguments.contestants,
                job,
                steps=arguments.steps,
                warmup_steps=arguments.warmup_steps,
                repeats=arguments.repeats,
            )
        if not any(results.turns[name] for name in arguments.contestants):
            raise ValueError(f"nothing was measured: {'; '.join(results.failures.values())}")
        peak = next(iter(results.turns[PEAK]), None)
        if peak is not None:
            speed = f"{peak['peak'] / 1e12:,.2g} TFLOP/s in {job.recipe.optimization.precision}"
            print(f"{peak['device']}, whose matrix products reach {speed}", end=", ")
        print(f"torch {torch.__version__}, transformers {transformers.__version__}, {job.threads} threads\n")
        print(table(results))


if __name__ == "__main__":
    main()
