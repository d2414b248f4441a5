"""Gives malformed files to every reader: each must be read in full or refused in a sentence that names it."""

import argparse
import copy
import csv
import faulthandler
import gzip
import io
import json
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.checkpointing.averaging import WEIGHTS, load_average
from vanilla_transformer.checkpointing.store import (
    MANIFEST,
    PROGRESS,
    Progress,
    commit_checkpoint,
    latest_complete_checkpoint,
    partial_path,
)
from vanilla_transformer.data.corpus import open_corpus
from vanilla_transformer.data.preparation import StoredCorpus, prepare_corpus
from vanilla_transformer.data.text_streams import TextStream, row_tables
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.reading import load_recipe, shipped_recipes
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.reporting.run_logger import RunLogger
from vanilla_transformer.tasks import get_task
from vanilla_transformer.translation import load_model

LONGEST_WAIT = 20
PAIRS = [
    ("a dog", "ein Hund"),
    ('"go," he said', "los"),
    ("null", "NA"),
    ("12", "007"),
    ("", "leer"),
    ("ü🙂", "\u2028"),
]
# Bytes, and JSON or YAML values, on which other readers have failed.
BYTES = [
    *(
        b"",
        b"\n",
        b"\r",
        b"\r\n",
        b"\t",
        b"\0",
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        "\u2028\x85".encode(),
    ),
    *(
        b'"',
        b"'",
        b",",
        b":",
        b"{",
        b"}",
        b"[",
        b"]",
        b"\\",
        b"\\ud800",
        b"#",
        b"- ",
        b"? ",
        b"---\n",
        b"...",
        b"%YAML",
    ),
    *(b"null", b"NaN", b"-1", b"0", b"1e999", b"1" * 5000, b"0x", b"0b", b"1:60", b"2001-99-99", b"true", b"~", b"="),
    *(b"<<: 3", b"!!int ''", b"!!float a", b"!!binary *", b"!!python/name:os.system", b"!!set {a}", b"!!timestamp x"),
    *(
        b"&a [*a]",
        b"*b",
        b"&a ",
        b"[" * 3000,
        b"{a: " * 1000,
        b"- " * 2000,
        b"\x1f\x8b\x08",
        b"PAR1",
        b"+",
        b"weight=1",
    ),
]
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    10**30,
    float("nan"),
    "",
    "../x",
    "\0",
    "ü" * 300,
    [],
    {},
    [[]],
    {"a": {}},
    7,
    "bpe",
]


class Hang(BaseException):
    """A reader that does not come to an end."""


class BadReader(AssertionError):
    """A reader that ended in a way that is not allowed."""


@dataclass(frozen=True)
class Reader:
    """A function that reads files.

    Attributes:
        make: Writes valid files into an empty directory.
        files: Names of the files that are then malformed, one at a time.
        read: Reads the files, and returns "read" if nothing is missing; otherwise raises an error of this package that
            names the directory.
    """

    make: Callable[[Path], None]
    files: tuple[str, ...]
    read: Callable[[Path], str]


def main() -> None:
    """Fuzzes each reader as often as asked for, and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000, help="malformed files in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=tuple(READERS), nargs="+", default=list(READERS))
    parser.add_argument("--keep-going", action="store_true", help="show all failures and not the first alone")
    arguments = parser.parse_args()
    outcomes, begin = {name: Counter[str]() for name in arguments.only}, time.monotonic()
    faulthandler.enable()
    for number in range(arguments.files):
        name = arguments.only[number % len(arguments.only)]
        try:
            outcomes[name][fuzz(name, arguments.seed + number)] += 1
        except BadReader as error:
            if not arguments.keep_going:
                raise
            outcomes[name]["FAILED"] += 1
            print(f"{name} {arguments.seed + number}: {error}")
    print(table(outcomes))
    print(f"\n{arguments.files:,} files in {time.monotonic() - begin:,.0f} s.")


def table(outcomes: dict[str, Counter[str]]) -> str:
    """Formats how often each reader ended in each way, as Markdown."""
    kinds = sorted({kind for counts in outcomes.values() for kind in counts})
    rows = [f"| reader | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    rows += [f"| {name} | {' | '.join(f'{counts[kind]:,}' for kind in kinds)} |" for name, counts in outcomes.items()]
    return "\n".join(rows)


def fuzz(name: str, seed: int) -> str:
    """Malforms one file of a reader, as the seed says, and returns how the reader ended.

    Raises:
        BadReader: The reader raised an error that is not this package's or names no file, lost something, or hung.
    """
    draw, reader = random.Random(f"{name} {seed}"), READERS[name]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        directory = Path(folder)
        _fill(name, reader, directory)
        file = directory / draw.choice(reader.files)
        file.write_bytes(malformed(file.read_bytes(), draw, file.suffix))
        try:
            with _no_longer_than(LONGEST_WAIT):
                return reader.read(directory)
        except BadReader as error:
            raise BadReader(f"{file.name}, {file.read_bytes()[:200]!r}: {error}") from error
        except Exception as error:
            if not type(error).__module__.startswith("vanilla_transformer") or not isinstance(
                error, OSError | ValueError | RecipeError
            ):
                raise BadReader(
                    f"{file.name}, {file.read_bytes()[:200]!r}: {type(error).__name__}: {error}"
                ) from error
            if folder not in str(error) or not str(error).strip():
                raise BadReader(f"The error does not say where it is: {error}") from error
            return "refused"
        except BaseException as error:
            raise BadReader(f"{file.name}, {file.read_bytes()[:200]!r}: {type(error).__name__}: {error}") from error


def malformed(data: bytes, draw: random.Random, suffix: str) -> bytes:
    """Changes some bytes of a file, or some values of a JSON file, or replaces the contents."""
    way = draw.random()
    if way < 0.05:
        return draw.randbytes(draw.randrange(200))
    if way < 0.1:
        return b"".join(draw.choices(BYTES, k=draw.randrange(20)))
    if suffix == ".json" and way < 0.6:
        return _other_values(data, draw)
    if suffix == ".gz" and way < 0.6:
        return gzip.compress(_other_bytes(gzip.decompress(data), draw))
    return _other_bytes(data, draw)


def _other_bytes(data: bytes, draw: random.Random) -> bytes:
    """Replaces, inserts or removes some bytes, most often few, or cuts off the end."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        start = draw.randrange(len(data) + 1)
        end = min(len(data), start + draw.choice((0, 1, 1, 4, 30)))
        pieces = draw.choice(BYTES), draw.randbytes(1), data[draw.randrange(len(data) + 1) :][:40], b"abc"
        data = data[:start] + draw.choices(pieces, (4, 3, 2, 3))[0] + data[end:]
        if draw.random() < 0.05:
            data = data[: draw.randrange(len(data) + 1)]
    return data


def _other_values(data: bytes, draw: random.Random) -> bytes:
    """Changes, adds or removes values anywhere in a JSON document."""
    document = {"document": json.loads(data)}
    for _ in range(draw.choice((1, 1, 2, 4))):
        holder: Any = document
        key: Any = "document"
        while isinstance(holder[key], dict | list) and holder[key] and draw.random() < 0.8:
            holder = holder[key]
            key = draw.choice(list(holder)) if isinstance(holder, dict) else draw.randrange(len(holder))
        if draw.random() < 0.2 and holder is not document:
            del holder[key]
        elif isinstance(holder, dict) and draw.random() < 0.1:
            holder[str(draw.choice(VALUES))] = copy.deepcopy(draw.choice(VALUES))
        else:
            holder[key] = copy.deepcopy(draw.choice(VALUES))
    return json.dumps(document["document"]).encode()


@contextmanager
def _no_longer_than(seconds: int) -> Iterator[None]:
    def ring(signum: int, frame: FrameType | None) -> None:
        raise Hang(f"no end after {seconds} s")

    previous = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    faulthandler.dump_traceback_later(10 * seconds, exit=True)  # For readers that ignore signals.
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


_MADE: dict[str, Path] = {}
_KEPT = tempfile.TemporaryDirectory(prefix="fuzz-whole-", ignore_cleanup_errors=True)


def _fill(name: str, reader: Reader, directory: Path) -> None:
    """Copies the valid files of a reader, which are made once."""
    if name not in _MADE:
        place = Path(_KEPT.name) / name
        place.mkdir()
        reader.make(place)
        _MADE[name] = place
    shutil.copytree(_MADE[name], directory, dirs_exist_ok=True)


def _table(name: str, content: bytes, count: Callable[[bytes], int | None]) -> Reader:
    """Makes a reader for a table of pairs; `count` finds their number independently of the reader."""

    def make(directory: Path) -> None:
        (directory / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)

    def read(directory: Path) -> str:
        pairs = _pairs_in(open_corpus([str(directory / name)], cache_dir=directory / "cache"))
        data = (directory / name).read_bytes()
        there = count(gzip.decompress(data) if name.endswith(".gz") else data)
        if there is not None and pairs != there:
            raise BadReader(f"{pairs} pairs of {there} were read")
        return "read"

    return Reader(make, (name,), read)


def _pairs_in(stream: TextStream) -> int:
    return sum(table.num_rows for table in stream.tables())


def _aligned(suffix: str) -> Reader:
    names = (f"text.en{suffix}", f"text.de{suffix}")

    def make(directory: Path) -> None:
        for side, name in enumerate(names):
            data = "".join(pair[side] + "\n" for pair in PAIRS).encode()
            (directory / name).write_bytes(gzip.compress(data) if suffix else data)

    def read(directory: Path) -> str:
        pairs = _pairs_in(open_corpus([str(directory / name) for name in names]))
        for name in names:
            data = (directory / name).read_bytes()
            data = gzip.decompress(data) if suffix else data
            if pairs != data.count(b"\n") + (not data.endswith(b"\n") and data != b""):
                raise BadReader(f"{pairs} pairs were read, and {name} has another number of lines")
        return "read"

    return Reader(make, names, read)


def _rows_of_tsv(data: bytes) -> int:
    lines = [line for line in data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").split(b"\n") if line]
    return len(lines) - (lines[0].split(b"\t")[:2] == [b"source", b"target"])


def _rows_of_csv(data: bytes) -> int:
    rows = csv.reader(io.StringIO(data.decode().removeprefix("\ufeff"), newline=""))
    return sum(1 for row in rows if row) - 1


def _rows_of_json(data: bytes) -> int:
    return sum(1 for line in data.decode().removeprefix("\ufeff").split("\n") if line.strip())


def _csv_of_pairs() -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([("en", "de"), *PAIRS])
    return text.getvalue().encode()


def _parquet() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"en": [pair[0] for pair in PAIRS], "de": [pair[1] for pair in PAIRS]}), buffer)
    return buffer.getvalue()


def _rows_of_parquet(data: bytes) -> int:
    return pq.read_metadata(io.BytesIO(data)).num_rows


def _make_recipe(directory: Path) -> None:
    names = [file.read_text(encoding="utf-8") for file in shipped_recipes().values()]
    mixture = "train:\n- {corpus: [news.en, news.de], weight: 0.7}\n- {corpus: a.tsv, weight: 0.3, streaming: true}\n"
    (directory / "recipe.yaml").write_text("".join(names[:1]) + mixture + "examples: [one, two]\nadam_epsilon: 1e-9\n")


def _read_recipe(directory: Path) -> str:
    recipe = load_recipe(directory / "recipe.yaml")
    (directory / "again.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    if load_recipe(directory / "again.yaml") != recipe:
        raise BadReader("the recipe is another when it is written and read again")
    return "read"


def _config() -> VanillaTransformerConfig:
    sizes = {"d_model": 8, "d_ff": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    return VanillaTransformerConfig.from_preset("tiny", vocab_size=264, **sizes)


def _make_model(directory: Path) -> None:
    tokenizer = VanillaTransformerTokenizer.train([word for pair in PAIRS for word in pair] * 5, vocab_size=264)
    tokenizer.save_pretrained(directory)
    VanillaTransformerForConditionalGeneration(_config()).save_pretrained(directory)


def _read_model(directory: Path) -> str:
    model, tokenizer = load_model(directory, device="cpu")
    if type(tokenizer("a dog")["input_ids"][0]) is not int or not list(model.parameters()):
        raise BadReader("there is no model and no tokenizer")
    return "read"


def _average(directory: Path) -> str:
    load_average(VanillaTransformerForConditionalGeneration(_config()), [directory])
    return "read"


def _make_checkpoints(directory: Path) -> None:
    for step in (3, 6):
        unfinished = partial_path(directory, step)
        unfinished.mkdir()
        (unfinished / WEIGHTS).write_bytes(b"weights" * step)
        (unfinished / "optimizer.bin").write_bytes(b"moments" * step)
        commit_checkpoint(unfinished, Progress(step=step))


def _resume(directory: Path) -> str:
    said: list[str] = []
    found = latest_complete_checkpoint(directory, said.append)
    if found is None or found.progress().step != found.step or found.step not in (3, 6):
        raise BadReader(f"gone on from {found}")
    whole = {MANIFEST, PROGRESS, WEIGHTS, "optimizer.bin"}
    if found.step == 6 and (set(found.files) | {MANIFEST} != whole or said):
        raise BadReader(f"taken for whole: {found}, {said}")
    if found.step == 3 and not (len(said) == 1 and "step-00000006" in said[0]):
        raise BadReader(f"skipped without a reason: {said}")
    return "read" if found.step == 6 else "passed over, and said so"


def _make_journal(directory: Path) -> None:
    lines = [json.dumps({"step": step, "epoch": 0.1, "loss": 5.0 / step, "seconds": 1.0}) for step in range(1, 6)]
    (directory / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))


def _forget(directory: Path) -> str:
    metrics, log = directory / "metrics.jsonl", directory / "train.log"
    lines = [line for line in metrics.read_bytes().split(b"\n") if line.strip()]
    logger = RunLogger(metrics, log, enabled=True)
    kept = len(logger.read_metrics())
    with redirect_stderr(io.StringIO()):
        logger.truncate_after(10**40)
    said = log.read_text() if log.exists() else ""
    dropped = len(lines) - kept
    if len(metrics.read_text().splitlines()) != kept or (dropped > 0) != bool(said):
        raise BadReader(f"{kept} of {len(lines)} lines are left, said is {said!r}")
    if dropped and f"{dropped:,} damaged line" not in said:
        raise BadReader(f"{dropped} lines are gone, said is {said!r}")
    return "dropped, and counted" if dropped else "read"


def _stream() -> TextStream:
    return TextStream("pairs", lambda: row_tables(iter(PAIRS)), stamp="the same")


def _tokens(tokenizer: VanillaTransformerTokenizer, directory: Path) -> StoredCorpus:
    task = get_task("translation").encoder(Recipe())
    return prepare_corpus(_stream(), tokenizer, task, max_length=20, directory=directory / "tokens", progress=False)


def _make_tokens(directory: Path) -> None:
    _make_model(directory)
    tokenizer = VanillaTransformerTokenizer.from_pretrained(directory)
    _tokens(tokenizer, directory)


def _prepare(directory: Path) -> str:
    tokenizer = VanillaTransformerTokenizer.from_pretrained(directory)
    corpus = _tokens(tokenizer, directory)
    if len(corpus) != 4 or corpus.report.kept != 4 or corpus.report.read != 6:
        raise BadReader(f"another corpus: {corpus.report}")
    return "read"


READERS: dict[str, Reader] = {
    "two text files": _aligned(""),
    "two text files, gzip": _aligned(".gz"),
    "TSV": _table("c.tsv", "".join(f"{a}\t{b}\n" for a, b in PAIRS).encode(), _rows_of_tsv),
    "TSV, gzip": _table("c.tsv.gz", "".join(f"{a}\t{b}\n" for a, b in PAIRS).encode(), _rows_of_tsv),
    "CSV": _table("c.csv", _csv_of_pairs(), _rows_of_csv),
    "JSONL": _table(
        "c.jsonl", "".join(json.dumps({"en": a, "de": b}) + "\n" for a, b in PAIRS).encode(), _rows_of_json
    ),
    "Parquet": _table("c.parquet", _parquet(), _rows_of_parquet),
    "recipe": Reader(_make_recipe, ("recipe.yaml",), _read_recipe),
    "tokenizer": Reader(_make_model, ("tokenizer.json", "tokenizer_config.json"), _read_model),
    "configuration": Reader(_make_model, ("config.json", "generation_config.json"), _read_model),
    "weights": Reader(_make_model, (WEIGHTS,), _average),
    "manifest": Reader(_make_checkpoints, ("step-00000006/manifest.json",), _resume),
    "checkpoint": Reader(_make_checkpoints, ("step-00000006/progress.json", f"step-00000006/{WEIGHTS}"), _resume),
    "metrics.jsonl": Reader(_make_journal, ("metrics.jsonl",), _forget),
    "report of prepared tokens": Reader(_make_tokens, ("tokens/report.json",), _prepare),
}


if __name__ == "__main__":
    main()
