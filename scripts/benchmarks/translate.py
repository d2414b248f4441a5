"""Measures the translation of files: memory by the number of lines, and speed and memory by the batch size."""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vanilla_transformer.data.text_lines import read_lines
from vanilla_transformer.extras.cmudict.dictionary import cmudict_pairs


def main() -> None:
    """Runs each measurement in a new process, and prints a table."""
    arguments = _arguments()
    if arguments.what == "child":
        print(json.dumps(_translated(json.loads(arguments.settings))))
    elif arguments.what == "memory":
        print(memory_table(arguments.model, arguments.text, arguments.lines, arguments.options))
    else:
        settings = {"model": arguments.model, "text": arguments.text, "options": arguments.options}
        print(batch_table(settings, arguments.batch_tokens, arguments.repeats))


def memory_table(model: str, text: str | None, numbers: list[int], options: list[str]) -> str:
    """Measures the command's peak memory for several numbers of lines, drawn from a text or from cmudict's words."""
    lines = list(read_lines(text)) if text else [word for word, _ in cmudict_pairs("train")]
    rows = ["| lines | text | peak resident memory | seconds | lines/s |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as directory:
        for number in numbers:
            drawn = Path(directory, f"{number}.txt")
            drawn.write_text("".join(f"{line}\n" for line in random.Random(0).choices(lines, k=number)), "utf-8")
            done = _in_new_process({"model": model, "text": str(drawn), "options": options})
            size, peak = drawn.stat().st_size / 1e6, done["peak"] / 1e6
            rate = number / done["seconds"]
            rows.append(f"| {number:,} | {size:,.1f} MB | {peak:,.0f} MB | {done['seconds']:,.0f} | {rate:,.0f} |")
    return "\n".join(rows)


def batch_table(settings: dict, sizes: list[int], repeats: int) -> str:
    """Measures speed, memory and padding for each batch size, in turns so that other load affects all sizes alike."""
    runs: dict[int, list[dict]] = {size: [] for size in sizes}
    for _ in range(repeats):
        for size in sizes:
            options = [*settings["options"], "--batch-tokens", str(size)]
            runs[size].append(_in_new_process(settings | {"options": options}))
    rows = [
        "| --batch-tokens | lines/s, median (least to most) | peak resident memory | padding |",
        "|---|---|---|---|",
    ]
    for size, done in runs.items():
        rates = sorted(run["lines"] / run["seconds"] for run in done)
        peak = max(run["peak"] for run in done) / 1e6
        padding = 1 - done[0]["tokens"] / done[0]["places"]
        rate = f"{statistics.median(rates):,.1f} ({rates[0]:,.1f} to {rates[-1]:,.1f})"
        rows.append(f"| {size:,} | {rate} | {peak:,.0f} MB | {padding:.1%} |")
    return "\n".join(rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="What follows `--` is for `translate`: -- --num-beams 1"
    )
    commands = parser.add_subparsers(dest="what", required=True)
    memory = commands.add_parser("memory", help="peak memory by the number of lines")
    memory.add_argument("model")
    memory.add_argument("--text", help="lines to draw from (default: the words of cmudict)")
    memory.add_argument("--lines", type=int, nargs="+", default=[1_000, 100_000, 300_000])
    batches = commands.add_parser("batches", help="speed and peak memory by the size of batches")
    batches.add_argument("model")
    batches.add_argument("text")
    batches.add_argument("--batch-tokens", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    batches.add_argument("--repeats", type=int, default=5)
    commands.add_parser("child").add_argument("settings")
    words, options = sys.argv[1:], []
    if "--" in words:
        words, options = words[: words.index("--")], words[words.index("--") + 1 :]
    return parser.parse_args(words, argparse.Namespace(options=options))


def _in_new_process(settings: dict) -> dict:
    command = [sys.executable, __file__, "child", json.dumps(settings)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def _translated(settings: dict) -> dict:
    """Runs the command, and returns its cost from the first batch on, with the tokens and padding of its batches."""
    import torch

    from vanilla_transformer.analysis.devices import peak_memory
    from vanilla_transformer.cli import main
    from vanilla_transformer.translation import LineTranslator

    generate = LineTranslator._generate
    started: list[float] = []
    done = {"tokens": 0, "places": 0}

    def counted(translator: LineTranslator, batch: tuple[list[list[int]], list[str]]) -> list:
        rows, _ = batch
        started.append(time.perf_counter())
        done["tokens"] += sum(map(len, rows))
        done["places"] += len(rows) * max(map(len, rows))
        return generate(translator, batch)

    LineTranslator._generate = counted  # type: ignore[assignment, method-assign]
    output = Path(f"{settings['text']}.translated")
    if main(["translate", settings["model"], settings["text"], "--output", str(output), *settings["options"]]):
        raise SystemExit(1)
    seconds = time.perf_counter() - started[0]
    with open(output, "rb") as file:
        lines = sum(1 for _ in file)
    output.unlink()
    return done | {"lines": lines, "seconds": seconds, "peak": peak_memory(torch.device("cpu"))}


if __name__ == "__main__":
    main()
