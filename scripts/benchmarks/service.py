"""Measures single calls per second on one model object: from one thread, from several, and through `Batcher`.

    python -m scripts.benchmarks.service MODEL WORDS [--calls 1000] [--callers 4] [--turns 3] [--num-beams 4]

The three take turns. CPU seconds count all threads of the process. The answers of all three are compared.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from scripts.benchmarks.decode import read_lines
from vanilla_transformer import Batcher
from vanilla_transformer.translation import load_model, translate_lines


def main() -> None:
    """Measures, and prints a table."""
    arguments = _arguments()
    model, tokenizer = load_model(arguments.model, device="cpu")
    lines = read_lines(arguments.lines, arguments.calls)
    settings: dict[str, Any] = {} if arguments.num_beams is None else {"num_beams": arguments.num_beams}

    def single(line: str) -> str:
        return next(translate_lines(model, tokenizer, [line], **settings)).text

    with Batcher(model, tokenizer, **settings) as batcher:
        ways: dict[str, tuple[Callable[[str], str], int]] = {
            "one thread": (single, 1),
            f"{arguments.callers} threads": (single, arguments.callers),
            f"{arguments.callers} threads, Batcher": (lambda line: batcher(line).text, arguments.callers),
        }
        answers: dict[str, list[str]] = {}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        costs: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.turns):
            for name, (call, callers) in ways.items():
                begun, used = time.perf_counter(), time.process_time()
                with ThreadPoolExecutor(callers) as pool:
                    answers[name] = list(pool.map(call, lines))
                rates[name].append(len(lines) / (time.perf_counter() - begun))
                costs[name].append(1000 * (time.process_time() - used) / len(lines))
    first, *others = answers.values()
    differ = max(sum(a != b for a, b in zip(first, other, strict=True)) for other in others)
    print(f"{len(lines):,} calls, {arguments.turns} turns, {torch.get_num_threads()} threads of torch\n")
    print("| | calls a second, median (least to most) | CPU ms a call, least |\n|---|---|---|")
    for name in ways:
        rate = rates[name]
        print(
            f"| {name} | {statistics.median(rate):.0f} ({min(rate):.0f} to {max(rate):.0f}) | {min(costs[name]):.2f} |"
        )
    print(f"\nAnswers that differ: {differ}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model directory")
    parser.add_argument("lines", help="file of lines to translate, a call each")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--callers", type=int, default=4, help="threads that call")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--num-beams", type=int, help="default: the model's")
    return parser.parse_args()


if __name__ == "__main__":
    main()
