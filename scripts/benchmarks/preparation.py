"""Measures the preparation of a large corpus: time, memory, and bytes read from and written to disk."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SIDES = ("corpus.source", "corpus.target")
LINES_PER_CHUNK = 100_000
WORDS = 100_000


def main() -> None:
    """Makes the corpus, prepares it in a new process, opens it in another, and prints a table."""
    arguments = _arguments()
    directory = arguments.directory.absolute()
    if arguments.step is not None:
        print(json.dumps(_measured(directory, arguments.step == "first")))
        return
    directory.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(SIDES):
        if not (directory / name).exists():
            write_text(directory / name, arguments.pairs, seed)
    first, again = (_in_new_process(directory, step) for step in ("first", "again"))
    print(table(sum((directory / name).stat().st_size for name in SIDES), first, again))


def write_text(path: Path, lines: int, seed: int) -> None:
    """Writes lines of 3 to 20 made-up words, whose frequencies follow Zipf's law."""
    random = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxzäöüß"))
    words = np.array(["".join(random.choice(letters, random.integers(2, 11))) for _ in range(WORDS)], dtype=object)
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        for start in range(0, lines, LINES_PER_CHUNK):
            lengths = random.integers(3, 21, min(LINES_PER_CHUNK, lines - start))
            ends = np.cumsum(lengths).tolist()
            # A power of a uniform number draws each rank with a frequency of about one over the rank.
            chosen = words[(WORDS ** random.random(ends[-1])).astype(np.int64) - 1].tolist()
            starts = [0, *ends[:-1]]
            file.writelines(f"{' '.join(chosen[a:b])}\n" for a, b in zip(starts, ends, strict=True))
    partial.rename(path)


def table(text_bytes: int, first: dict, again: dict) -> str:
    """Formats the measurements as Markdown."""
    rows = [
        ("pairs, text", f"{first['pairs']:,}, {text_bytes / 1e9:.2f} GB"),
        ("tokens", f"{first['tokens']:,}, {first['tokens_bytes'] / 1e9:.2f} GB on disk"),
        ("counting and sampling", f"{first['counting']:,.0f} s"),
        ("learning the vocabulary", f"{first['learning']:,.0f} s"),
        ("tokens from text", f"{first['tokenizing']:,.0f} s"),
        ("together", f"{first['seconds']:,.0f} s, {first['cpu_seconds']:,.0f} s of them on a core"),
        ("peak resident memory", f"{first['peak'] / 1e9:.2f} GB, children {first['peak_of_children'] / 1e9:.2f} GB"),
        ("read", _passes(first["read"], text_bytes)),
        ("written", _passes(first["written"], text_bytes)),
        ("read and written", _passes(first["read"] + first["written"], text_bytes)),
        ("started again: to the prepared corpus", f"{again['seconds']:.1f} s"),
        ("started again: to the first batch of an epoch", f"{again['seconds'] + again['planning']:.1f} s"),
        ("started again: peak resident memory", f"{again['peak'] / 1e9:.2f} GB"),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _passes(size: int, text_bytes: int) -> str:
    return f"{size / 1e9:.2f} GB, {size / text_bytes:.2f} × the text"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "directory", type=Path, help="for the corpus and the tokens; the corpus is made if it is missing"
    )
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--step", choices=("first", "again"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_new_process(directory: Path, step: str) -> dict:
    command = [sys.executable, __file__, str(directory), "--step", step]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def _measured(directory: Path, first: bool) -> dict:
    """Does the work of `train` before its first step, and returns what it cost."""
    from vanilla_transformer.data.batching import StepPlan
    from vanilla_transformer.data.sources import parse_corpora
    from vanilla_transformer.data.token_corpus import PreparedCorpus
    from vanilla_transformer.recipe.schema import Recipe
    from vanilla_transformer.training.inputs import gather_inputs
    from vanilla_transformer.training.run_directory import RunDirectory

    run = RunDirectory(directory / "run")
    recipe = Recipe.of(train=parse_corpora([str(directory / name) for name in SIDES]), output=str(run.path))
    said = []

    def say(message: str) -> None:
        said.append(time.time())
        print(message, file=sys.stderr)

    before, start, cpu = _transferred(), time.time(), time.process_time()
    inputs = gather_inputs(recipe, run, say)
    end, after = time.time(), _transferred()
    corpus = inputs.train
    assert isinstance(corpus, PreparedCorpus)
    figures = {
        "pairs": corpus.report.read,
        "tokens": sum(int(lengths.sum(dtype=np.int64)) for lengths in corpus.lengths.values()),
        "tokens_bytes": (run.prepared / "train" / "tokens.arrow").stat().st_size,
        "seconds": end - start,
        "cpu_seconds": time.process_time() - cpu,
        "read": after["rchar"] - before["rchar"],
        "written": after["wchar"] - before["wchar"],
    }
    if first:
        learned = run.tokenizer_config.stat().st_mtime
        figures |= {"counting": said[0] - start, "learning": learned - said[0], "tokenizing": end - learned}
    plan = StepPlan(*corpus.lengths.values(), batch_tokens=25_000, batches_per_step=2, seed=1)
    corpus.rows(plan.epoch(0)[0].batches[0])
    figures["planning"] = time.time() - end
    return figures | {"peak": _peak_memory("self"), "peak_of_children": _peak_of_children()}


def _transferred() -> dict[str, int]:
    """Returns the bytes that this process asked the system to read and write, even if they were cached."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


def _peak_memory(process: str) -> int:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def _peak_of_children() -> int:
    """Returns the peak memory of the largest child process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return max(map(_peak_memory, children), default=0)


if __name__ == "__main__":
    main()
