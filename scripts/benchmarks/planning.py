"""Measures the planning of epochs in parts: time, peak memory and padding, with made-up or real lengths.

python -m scripts.benchmarks.planning DIRECTORY --pairs 40000000 100000000
python -m scripts.benchmarks.planning DIRECTORY --corpus prepared-corpus --part-pairs 1000000000 60000
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from vanilla_transformer.data.batching import StepPlan
from vanilla_transformer.data.token_corpus import PreparationReport, TokenFile
from vanilla_transformer.extras.many_machines.shards import MANIFEST, Manifest, Shard, ShardedCorpus, lengths_name

PAIRS_OF_A_SHARD = 1_000_000
COLUMNS = "source", "target"
ROW = "| {pairs:,} | {parts} | {seconds:.0f} | {slowest:.1f} | {peak:.2f} | {padding:.3%} | {once} |"
HEAD = "| pairs | parts | seconds | slowest part | peak memory, GB | padding | every pair once |\n" + "|---" * 7 + "|"


def main(words: list[str] | None = None) -> None:
    """Prints a row for each size, measured in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="for made-up lengths, four bytes a pair; kept")
    parser.add_argument("--pairs", type=int, nargs="*", default=[], help="sizes of corpora to make up")
    parser.add_argument("--corpus", help="a corpus made by `prepare`, in their place")
    parser.add_argument("--part-pairs", type=int, nargs="+", default=[40_000_000])
    parser.add_argument("--batch-tokens", type=int, default=25_000)
    parser.add_argument("--batches-per-step", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.measure is not None:
        print(json.dumps(measured(options, options.measure)))
        return
    places = [options.corpus] if options.corpus else [made_up(options.directory, pairs) for pairs in options.pairs]
    print(HEAD)
    for place in places:
        for part_pairs in options.part_pairs:
            print(ROW.format(**in_new_process(options, str(place), part_pairs)), flush=True)


def in_new_process(options: argparse.Namespace, place: str, part_pairs: int) -> dict:
    """Measures in a new process, whose peak memory is that of planning alone."""
    named = {name: getattr(options, name) for name in ("batch_tokens", "batches_per_step", "epochs")}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**named, "part_pairs": part_pairs}.items()]
    command = [sys.executable, "-m", "scripts.benchmarks.planning", str(options.directory), *words, "--measure", place]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def made_up(directory: Path, pairs: int) -> Path:
    """Writes the lengths of a made-up corpus without tokens: about 25 a side, up to 256, and correlated."""
    place = directory / f"{pairs}"
    if (place / MANIFEST).exists():
        return place
    place.mkdir(parents=True, exist_ok=True)
    shards = []
    for number, start in enumerate(range(0, pairs, PAIRS_OF_A_SHARD)):
        random, rows = np.random.default_rng([1, number]), min(PAIRS_OF_A_SHARD, pairs - start)
        sources = random.gamma(2.5, 10, rows)
        sides = np.stack([sources, sources * random.normal(1.05, 0.15, rows)])
        lengths = np.clip(sides, 2, 256).astype(np.uint16)
        np.save(place / lengths_name(number), lengths)
        counts = tuple(lengths.sum(axis=1, dtype=np.int64).tolist())
        size = (place / lengths_name(number)).stat().st_size
        shards.append(Shard(number, "", PreparationReport(rows, rows, 0, 0), "", "", counts, (0, size)))
    manifest = Manifest("translation", COLUMNS, 256, "", (None, None), None, tuple(shards))
    (place / MANIFEST).write_text(json.dumps(manifest.to_json()))
    return place


class NoTokens(TokenFile):
    """A stand-in for a shard's ids where only lengths are planned."""

    def __init__(self, rows: int) -> None:
        self._ends = np.array([rows])


def lengths_alone(corpus: ShardedCorpus) -> None:
    """Makes a corpus open no tokens."""
    shards, files = corpus.manifest.shards, corpus._files
    files.open = lambda shard: (  # type: ignore[method-assign]
        NoTokens(shards[shard].rows),
        np.load(files._path(lengths_name(shards[shard].number)), mmap_mode="r"),
    )


def measured(options: argparse.Namespace, place: str) -> dict:
    """Plans some epochs, reads every batch, and returns the costs."""
    (part_pairs,) = options.part_pairs
    corpus = ShardedCorpus(place, seed=1, part_pairs=part_pairs, copies=options.directory / "copies")
    if not (Path(place) / "tokens-00000.arrow").exists():
        lengths_alone(corpus)
    make_plan = partial(StepPlan, batch_tokens=options.batch_tokens, batches_per_step=options.batches_per_step, seed=1)
    seconds: list[float] = []
    began, real, padded, rows, once = time.monotonic(), 0, 0, 0, True
    for epoch in range(options.epochs):
        for steps, plan in planned(corpus, make_plan, epoch, seconds):
            there = np.zeros(len(plan.lengths[0]), dtype=bool)
            for step in steps:
                for batch in step.batches:
                    found, all_tokens = plan.real_and_all_tokens(batch)
                    real, padded, rows = real + found, padded + all_tokens, rows + len(batch)
                    there[batch] = True
            once = once and bool(there.all())
            del steps, step, batch, plan, there  # As in training, where nothing of a part is kept.
    return {
        "pairs": len(corpus),
        "parts": len(seconds) // options.epochs,
        "seconds": time.monotonic() - began,
        "slowest": max(seconds),
        "peak": peak_memory() / 1e9,
        "padding": 1 - real / padded,
        "once": "yes" if once and rows == len(corpus) * options.epochs else "no",
    }


def planned(corpus: ShardedCorpus, make_plan: partial, epoch: int, seconds: list[float]) -> Iterator[tuple]:
    """Yields the steps and plans of an epoch's parts, and drops each before the next is made."""
    for part in corpus.epoch_parts(epoch):
        start = time.monotonic()
        plan = make_plan(*part.corpus.lengths.values())
        steps = plan.epoch(epoch, part.number)
        seconds.append(time.monotonic() - start)
        yield steps, plan
        del part, plan, steps


def peak_memory() -> int:
    """Returns the peak memory of this process in bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


if __name__ == "__main__":
    main()
