"""Swaps inputs under the commands: a swap must be refused or reported, or lead to the result of a fresh start."""

import csv
import io
import json
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import sacrebleu

from scripts.stress.cases import (
    Command,
    Fault,
    Group,
    Outcome,
    check_manners,
    check_untouched,
    copied,
    corpora,
    ground,
    main,
    model_ground,
    run,
    run_together,
    sentences,
    snapshot,
    start,
    strict_json,
    succeed,
    write_corpora,
    write_lines,
)
from scripts.stress.models import (
    SETTINGS,
    TOKENIZER,
    WEIGHTS,
    _change,
    check_same_run,
    stopped_ground,
    train_words,
)
from scripts.stress.options import check_translations
from scripts.stress.reference import Reference, Unusable

CORPORA = [f"{name}.{side}" for name in ("train", "dev") for side in ("en", "de")]
# Lines that a process translates before it writes them, so that a small file takes several rounds.
WINDOW = 4
SAME = ("same", "equal", "identical", "twice", "once")


def small_windows() -> None:
    """Patches a process to translate in windows of a few lines."""
    from vanilla_transformer.translation import translator

    translator.CHUNK_LINES = dict.fromkeys(translator.CHUNK_LINES, WINDOW)


# --- text that changes under a run -----------------------------------------------------------------------------------


def _other_words(path: Path, draw: random.Random) -> None:
    """Keeps the number of tokens in each line, and permutes words of one sub-word each."""
    lines = [line.split() for line in path.read_text().splitlines()]
    while True:
        order = draw.sample(
            sorted({word for line in lines for word in line}), len({w for line in lines for w in line})
        )
        exchange = dict(zip(order, order[1:] + order[:1], strict=True))
        changed = [[exchange[word] for word in line] for line in lines]
        if changed != lines:
            write_lines(path, changed)
            return


def _other_order(path: Path, draw: random.Random) -> None:
    """Reverses the words of some lines, which keeps their tokens."""
    lines = [line.split() for line in path.read_text().splitlines()]
    long = [number for number, line in enumerate(lines) if line != line[::-1]]
    for number in draw.sample(long, draw.choice((1, 2, len(long)))):
        lines[number] = lines[number][::-1]
    write_lines(path, lines)


def _two_lines_exchanged(path: Path, draw: random.Random) -> None:
    lines = path.read_text().splitlines()
    while True:
        one, two = draw.sample(range(len(lines)), 2)
        if lines[one] != lines[two]:
            lines[one], lines[two] = lines[two], lines[one]
            path.write_text("\n".join(lines) + "\n")
            return


def _another_line(path: Path, draw: random.Random) -> None:
    """Changes one line."""
    lines = path.read_text().splitlines()
    lines[draw.randrange(len(lines))] += " one"
    path.write_text("\n".join(lines) + "\n")


def _sides_exchanged(path: Path, draw: random.Random) -> None:
    other = path.with_suffix(".de" if path.suffix == ".en" else ".en")
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


TEXT_CHANGES: dict[str, Callable[[Path, random.Random], None]] = {
    "other words, as many": _other_words,
    "words in another order": _other_order,
    "two lines exchanged": _two_lines_exchanged,
    "a line changed": _another_line,
    "sides exchanged": _sides_exchanged,
}


def train_case(directory: Path, draw: random.Random) -> str:
    """Resumes a killed run after its text, its tokenizer, its recipe or an option has changed."""
    place = stopped_ground()
    with copied(place, directory, *CORPORA, "model"):
        pass
    way = draw.choice((*TEXT_CHANGES, *TEXT_CHANGES, "tokenizer", "recipe", "option", "nothing"))
    words, changed = train_words(), draw.choice(CORPORA)
    if way in TEXT_CHANGES:
        TEXT_CHANGES[way](directory / changed, draw)
    elif way == "tokenizer":
        changed = TOKENIZER
        shutil.copy(model_ground() / "other" / TOKENIZER, directory / "model" / TOKENIZER)
    elif way == "recipe":
        changed = "recipe.yaml"
        recipe = directory / "model" / "recipe.yaml"
        field, value = draw.choice((("scale: 1.0", "scale: 1.1"), ("seed: 1", "seed: 2"), ("d_ff: 32", "d_ff: 16")))
        recipe.write_text(recipe.read_text().replace(field, value))
    elif way == "option":
        changed, value = draw.choice((("dropout", "0.2"), ("seed", "2"), ("batch-tokens", "200"), ("d-ff", "16")))
        words += [f"--{changed}", value]
    before = snapshot(directory / "model" / "checkpoints")
    outcome = run(Command(words), directory)
    try:
        return _judge_run(directory, outcome, words, before, changed)
    except Fault as fault:
        raise Fault(f"train goes on, {way} ({changed}): {fault}") from fault


def _judge_run(directory: Path, outcome: Outcome, words: list[str], before: dict[str, str], changed: str) -> str:
    corpus = changed.partition(".")[0]
    check_manners(outcome, names=[changed, corpus, "text", "data", "corpus", "tokenizer"])
    if outcome.code != 0:
        check_untouched(before, directory / "model" / "checkpoints")
        return "refused"
    scratch = directory / "scratch"
    scratch.mkdir()
    with copied(directory, scratch, *CORPORA):
        pass
    succeed(Command(words), scratch)
    try:
        check_same_run(directory / "model", scratch / "model")
    except Fault:
        told = [line for line in outcome.err.splitlines() if corpus in line and "change" in line.lower()]
        if corpus == "dev" and told:
            return "said"
        raise
    return "as from the start"


def begin_case(directory: Path, draw: random.Random) -> str:
    """Replaces the text of a run that never reached a checkpoint, and starts the run again."""
    write_corpora(directory)
    words = train_words()
    way = draw.choice(("dry run", "killed", "ended by an error"))
    if way == "dry run":
        succeed(Command([*words, "--dry-run"]), directory)
    elif way == "killed":
        ready = directory / "model" / "tokenizer_config.json"
        process, files = start(Command(words), directory)
        while not ready.exists() and process.is_alive():
            time.sleep(0.001)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        shutil.rmtree(files)
        shutil.rmtree(directory / "model" / "checkpoints", ignore_errors=True)
    else:
        run(Command(words, file_size=20_000), directory)  # Room for text and tokens, but not for a checkpoint.
    if draw.random() < 0.5:
        write_corpora(directory, seed=draw.randrange(1, 1000))
        for path in sorted(directory.glob("*.??")):
            path.write_text(path.read_text().replace("one", "uvwxyz").replace("two", "klm"))
        changed = "all text"
    else:
        changed = draw.choice(CORPORA)
        TEXT_CHANGES[draw.choice(sorted(TEXT_CHANGES))](directory / changed, draw)
    outcome = run(Command(words), directory)
    try:
        return _judge_run(directory, outcome, words, {}, changed)
    except Fault as fault:
        raise Fault(f"train after a {way}, {changed} replaced: {fault}") from fault


def finished_case(directory: Path, draw: random.Random) -> str:
    """Repeats the command of a finished run, or of one that a signal stopped: nothing may change."""
    place = stopped_ground()
    with copied(place, directory, *CORPORA, "model", "whole"):
        pass
    way = draw.choice(("again", "SIGHUP", "SIGTERM", "SIGINT"))
    try:
        if way == "again":
            before = snapshot(directory / "whole")
            outcome = run(Command(train_words("whole")), directory)
            check_manners(outcome)
            before.pop("train.log")
            after = snapshot(directory / "whole")
            if any(after.get(name) != value for name, value in before.items()):
                raise Fault("a finished run changed")
            if outcome.code != 0:
                raise Fault(f"the command of a finished run ended with {outcome.code}: {outcome.err!r}")
            return "as it was"
        number = getattr(signal, way)
        ready = directory / "model" / "checkpoints" / "step-00000040"
        outcome = run(Command(train_words(), stop_when=ready.exists, stop_signal=number), directory)
        if outcome.code not in (0, 128 + number) or "Traceback" in outcome.err:
            raise Fault(f"ended with {outcome.code} by {way}: {outcome.err[-300:]!r}")
        outcome = run(Command(train_words()), directory)
        check_manners(outcome)
        check_same_run(directory / "model", place / "whole")
    except Fault as fault:
        raise Fault(f"finished or stopped, {way}: {fault}") from fault
    return "as without a stop"


# --- an unfinished translation ---------------------------------------------------------------------------------------


def _make_unfinished(place: Path) -> None:
    """Makes an output killed when some of its lines were written, and the same output finished."""
    with copied(model_ground(), place, "model"):
        pass
    write_lines(place / "in", sentences(random.Random(5), 60))
    words = ["translate", "model", "in", "--output", "out", "--resume", "--num-beams", "2"]
    succeed(Command([*words[:4], "done", *words[5:]], patch=small_windows), place)
    process, files = start(Command(words, patch=small_windows), place)
    while not ((place / "out").exists() and (place / "out").stat().st_size > 100) and process.is_alive():
        time.sleep(0.0005)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    shutil.rmtree(files)
    lines = (place / "out").read_text().count("\n")
    if not 0 < lines < 60:
        raise RuntimeError(f"{lines} lines were written")


def translation_case(directory: Path, draw: random.Random) -> str:
    """Resumes an unfinished or finished translation after input, model, options or output have changed."""
    with copied(ground("unfinished", _make_unfinished), directory):
        pass
    output = draw.choice(("out", "out", "done"))
    words = ["translate", "model", "in", "--output", output, "--resume", "--num-beams", "2"]
    ways = ["input", "later input", "more input", "less input", "model", "tokenizer", "search", "option", "output"]
    way = draw.choice([*ways, "record", "nothing", "SIGTERM", "SIGHUP", "SIGINT"])
    text = (directory / "in").read_text().splitlines()
    if way == "input":
        text[draw.randrange(4)] += " ten"
    elif way == "later input":
        text[draw.randrange(50, 60)] = "seven"
    elif way == "more input":
        text += ["one two"] * draw.randint(1, 9)
    elif way == "less input":
        text = text[: draw.randrange(60)]
    elif way == "model":
        shutil.copy(model_ground() / "other" / WEIGHTS, directory / "model" / WEIGHTS)
    elif way == "tokenizer":
        shutil.copy(model_ground() / "other" / TOKENIZER, directory / "model" / TOKENIZER)
    elif way == "search":
        _change(directory / "model", SETTINGS, "length_penalty", 1.7)
    elif way == "option":
        words += draw.choice((["--num-beams", "3"], ["--length-penalty", "2"], ["--max-length-beyond-source", "1"]))
    elif way == "output":
        data = bytearray((directory / output).read_bytes())
        data[draw.randrange(90)] ^= 1
        (directory / output).write_bytes(bytes(data))
    elif way.startswith("SIG"):
        stopped = run(Command(words, patch=small_windows, stop_after=0.4, stop_signal=getattr(signal, way)), directory)
        if "Traceback" in stopped.err:
            raise Fault(f"translate --resume, {way}: {stopped.err[-300:]}")
    elif way == "record":
        record = json.loads((directory / f"{output}.resume").read_text())
        field = draw.choice(sorted(record["place"]))
        record["place"][field] = draw.choice((0, 1, 8, "x"))
        (directory / f"{output}.resume").write_text(json.dumps(record))
    (directory / "in").write_text("".join(f"{line}\n" for line in text))
    before = snapshot(directory)
    outcome = run(Command(words, patch=small_windows), directory)
    try:
        check_manners(outcome)
        if outcome.code != 0:
            after = snapshot(directory)
            if after[output] != before[output] and way != "record":
                raise Fault(f"refused, and yet {output} changed")
            return "refused"
        scratch = [word for word in words if word != "--resume"]
        scratch[scratch.index(output)] = "scratch"
        succeed(Command(scratch), directory)
        if (directory / output).read_bytes() != (directory / "scratch").read_bytes():
            raise Fault("the output is not that of a start from what is there now")
    except Fault as fault:
        raise Fault(f"translate --resume to {output}, another {way}: {fault}") from fault
    return "as from the start"


# --- the same twice --------------------------------------------------------------------------------------------------


def same_case(directory: Path, draw: random.Random) -> str:
    """Gives the same files where they should differ: dev and train, test and dev, both sides."""
    write_corpora(directory)
    for name in ("train", "dev"):
        for side in ("en", "de"):
            shutil.copy(directory / f"{name}.{side}", directory / f"copy-{name}.{side}")
    dev = ["dev.en", "dev.de"]
    short = [*train_words()[7:], "--max-steps", "2"]
    ways = {
        "dev is train": ["train", *corpora("train"), "--dev", "train.en", "train.de", *short],
        "dev is a copy of train": ["train", *corpora("train"), "--dev", "copy-train.en", "copy-train.de", *short],
        "test is dev": ["train", *corpora(), "--test", *dev, *short],
        "test is a copy of dev": ["train", *corpora(), "--test", "copy-dev.en", "copy-dev.de", *short],
        "sides of train": ["train", "--train", "train.en", "train.en", "--dev", *dev, *short],
        "sides of dev": ["train", *corpora("train"), "--dev", "dev.de", "dev.de", *short],
        "sides are copies": ["train", "--train", "train.en", "copy-train.en", "--dev", *dev, *short],
        "evaluate": ["evaluate", str(model_ground() / "model"), "--data", "dev.en", "dev.en"],
        "evaluate a copy": ["evaluate", str(model_ground() / "model"), "--data", "dev.en", "copy-dev.en"],
        "columns": [
            *("evaluate", str(model_ground() / "model"), "--data", "t.tsv"),
            *("--source-column", "source", "--target-column", "source"),
        ],
    }
    (directory / "t.tsv").write_text("source\ttarget\none\teins\ntwo\tzwei\n")
    way = draw.choice(sorted(ways))
    outcome = run(Command(ways[way]), directory)
    try:
        check_manners(outcome)
        if outcome.code == 0 and not any(word in outcome.err.lower() for word in SAME):
            raise Fault(f"nothing was said: {outcome.err[:300]!r}")
    except Fault as fault:
        raise Fault(f"{way} the same: {fault}") from fault
    return "refused" if outcome.code else "said"


# --- outputs over inputs ---------------------------------------------------------------------------------------------


def output_case(directory: Path, draw: random.Random) -> str:
    """Writes an output over an input, a part of the model or a link, or without room: nothing old may be lost."""
    with copied(model_ground(), directory, "model", "test.en", "test.de"):
        pass
    (directory / "README").write_text("mine\n")
    (directory / "link").symlink_to("test.en")
    (directory / "dangling").symlink_to("nowhere")
    os.link(directory / "test.en", directory / "hard")
    text = (directory / "test.en").read_bytes()
    victims = ["test.en", "link", "hard", f"model/{WEIGHTS}", f"model/{SETTINGS}", f"model/{TOKENIZER}"]
    victims += ["model/config.json", "model", "dangling", "nowhere/out", "/dev/full", "out", "out.gz", "model/out"]
    victim, way = draw.choice(victims), draw.choice(("stdin", "file", "evaluate", "average", "no room", "card"))
    command, may_change = {
        "stdin": (Command(["translate", "model", "--output", victim], stdin=text), ()),
        "file": (Command(["translate", "model", "test.en", "--output", victim]), ()),
        "evaluate": (Command(["evaluate", "model", "--data", "test.en", "test.de", "--output", victim]), ()),
        "average": (Command(["average", "model", "--output", victim]), ()),
        "no room": (Command(["translate", "model", "test.en", "--output", victim], file_size=draw.randrange(9)), ()),
        "card": (
            Command(["evaluate", "model", "--data", "test.en", "test.de", "--card"], file_size=draw.randrange(3000)),
            ("model/README.md",),
        ),
    }[way]
    (directory / "model" / "README.md").write_text((model_ground() / "model/README.md").read_text() + "\nMy lines.\n")
    before = snapshot(directory)
    patch = partial(_read_stdin_from, "test.en") if way == "stdin" else None
    outcome = run(Command(command.words, command.stdin, file_size=command.file_size, patch=patch), directory)
    try:
        check_manners(outcome)
        after = snapshot(directory)
        # A small limit cuts what is written, but must not change earlier files.
        lost = [name for name, value in before.items() if after.get(name) != value and name not in may_change]
        if lost and not (victim in lost and victim in ("out", "out.gz", "model/out")):
            raise Fault(f"exit code {outcome.code}, and {', '.join(lost)} is not what it was")
        if way == "card" and "My lines." not in (directory / "model" / "README.md").read_text():
            raise Fault("the card's own lines are gone")
        if outcome.code == 0 and way in ("stdin", "file", "evaluate") and victim in ("out", "dangling", "model/out"):
            lines = text.decode().splitlines()
            check_translations(Reference.load(directory / "model"), lines, (directory / victim).read_text())
        elif outcome.code == 0 and victim == "/dev/full" and way in ("stdin", "file", "evaluate"):
            raise Fault("nothing was written, and nothing said")
    except Fault as fault:
        raise Fault(f"output {victim}, {way}: {fault}") from fault
    return "refused, nothing lost" if outcome.code else "written"


def _read_stdin_from(name: str) -> None:
    """Opens a file as standard input, as the shell does."""
    os.dup2(os.open(name, os.O_RDONLY), 0)


# --- tables ----------------------------------------------------------------------------------------------------------


def table_case(directory: Path, draw: random.Random) -> str:
    """Reads a table with any names and order of columns: the source is translated, the target compared."""
    place = model_ground()
    sources = [" ".join(words) for words in sentences(draw, 5)]
    targets = [" ".join(reversed(source.split())) for source in sources]
    kind = draw.choice(("tsv", "csv", "jsonl", "parquet"))
    header = draw.choice(
        (
            *(["source", "target"], ["target", "source"], ["id", "source", "target"], ["target", "id", "source"]),
            *(["en", "de"], ["id", "en", "de"], ["source", "source", "target"], ["source", "target", "note"]),
        )
    )
    if kind in ("jsonl", "parquet") and len(set(header)) < len(header):
        header = ["source", "target"]
    with_header = kind != "tsv" or draw.random() < 0.7
    cells = {"source": sources, "en": sources, "target": targets, "de": targets}
    columns = [cells.get(name, [f"x{number}" for number in range(5)]) for name in header]
    rows = [list(row) for row in zip(*columns, strict=True)]
    _write_table(directory / f"t.{kind}", kind, header if with_header else None, rows, header)
    named = with_header and draw.random() < 0.4
    ours, theirs = ("en", "de") if "en" in header else ("source", "target")
    options = ["--source-column", ours, "--target-column", theirs] if named else []
    words = ["evaluate", str(place / "model"), "--data", f"t.{kind}", "--json", "--output", "out", "--num-beams", "1"]
    outcome = run(Command([*words, *options]), directory)
    try:
        check_manners(outcome, names=[f"t.{kind}", "column"])
        # In a TSV whose first row has other names than these two, that row may as well be a pair.
        plain = header[:2] == ["source", "target"] or (header[:2] == ["en", "de"] and kind != "tsv")
        plain = plain and (with_header or len(header) == 2)
        if outcome.code != 0:
            if plain or (named and header.count("source") < 2):
                raise Fault(f"refused, though it is clear: {outcome.refusal}")
            return "refused"
        report = strict_json(outcome.out, "what evaluate prints")
        if report["pairs"] != len(rows):
            raise Fault(f"{report['pairs']} pairs of {len(rows)}")
        output = (directory / "out").read_text()
        check_translations(Reference.load(place / "model"), sources, output, num_beams=1)
        [value] = [score["value"] for score in report["scores"] if score["name"] == "chrf"]
        exact = sacrebleu.corpus_chrf(output.split("\n")[:-1], [targets]).score
        if abs(value - exact) > 1e-6:
            raise Fault(f"chrf is {value}, and {exact} against the target")
    except Fault as fault:
        raise Fault(f"{kind} {header}{'' if with_header else ' without header'} {options}: {fault}") from fault
    return "source to target"


def _write_table(path: Path, kind: str, header: list[str] | None, rows: list[list[str]], names: list[str]) -> None:
    if kind == "jsonl":
        path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    elif kind == "parquet":
        pq.write_table(pa.table({name: [row[n] for row in rows] for n, name in enumerate(names)}), path)
    elif kind == "csv":
        text = io.StringIO()
        csv.writer(text).writerows([*([header] if header else []), *rows])
        path.write_text(text.getvalue())
    else:
        path.write_text("".join("\t".join(row) + "\n" for row in [*([header] if header else []), *rows]))


# --- two processes ---------------------------------------------------------------------------------------------------


def processes_case(directory: Path, draw: random.Random) -> str:
    """Runs two processes of one job, the second of which sees another input, another model, or the same."""
    for name in ("a", "b"):
        (directory / name).mkdir()
        with copied(model_ground(), directory / name, "model", "test.en", "test.de", *CORPORA):
            pass
    way = draw.choice(("input", "one line", "weights", "tokenizer", "search", "nothing", "train text"))
    second = directory / "b"
    if way == "input":
        write_lines(second / "test.en", sentences(random.Random(4), 8))
    elif way == "one line":
        TEXT_CHANGES["words in another order"](second / "test.en", draw)
    elif way == "weights":
        shutil.copy(model_ground() / "other" / WEIGHTS, second / "model" / WEIGHTS)
    elif way == "tokenizer":
        shutil.copy(model_ground() / "other" / TOKENIZER, second / "model" / TOKENIZER)
    elif way == "search":
        _change(second / "model", SETTINGS, "length_penalty", 3.0)
    elif way == "train text":
        _other_words(second / "train.en", draw)
    command = "train" if way == "train text" else "evaluate"
    words = {
        "evaluate": [
            "evaluate",
            "model",
            "--data",
            "test.en",
            "test.de",
            "--output",
            str(directory / "out"),
            "--json",
        ],
        "train": [*train_words(str(directory / "run")), "--max-steps", "4"],
    }[command]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    together = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    commands = [
        Command(words, env={**together, "RANK": str(n), "LOCAL_RANK": str(n)}, patch=small_windows, cwd=name)
        for n, name in enumerate(("a", "b"))
    ]
    outcomes = run_together(commands, directory)
    try:
        return _judge_processes(directory, outcomes, command, way)
    except Fault as fault:
        raise Fault(f"two processes {command}, another {way}: {fault}") from fault


def _judge_processes(directory: Path, outcomes: Sequence[Outcome], command: str, way: str) -> str:
    said = "".join(outcome.err for outcome in outcomes)
    if "Traceback" in said or any(outcome.code < 0 and "error" not in said for outcome in outcomes):
        raise Fault(f"ended with {[outcome.code for outcome in outcomes]}: {said[-600:]}")
    if any(outcome.code for outcome in outcomes):
        if not all(outcome.code for outcome in outcomes):
            raise Fault(f"one ended well, one did not: {[outcome.code for outcome in outcomes]} {said[-600:]}")
        if not any(outcome.refusal for outcome in outcomes) or way == "nothing":
            raise Fault(f"no sentence: {said[-600:]}")
        return "refused"
    if command == "train":
        raise Fault("both trained")
    reference = Reference.load(directory / "a" / "model")
    lines = (directory / "a" / "test.en").read_text().splitlines()
    check_translations(reference, lines, (directory / "out").read_text())
    return "as the main process alone"


def at_once_case(directory: Path, draw: random.Random) -> str:
    """Runs the same command twice at once, to one output: one of them must do it, or both must write the same."""
    place = stopped_ground()
    with copied(place, directory, *CORPORA, "model"):
        pass
    write_lines(directory / "in", sentences(random.Random(3), 40))
    model = model_ground() / "model"
    way = draw.choice(("train", "translate", "translate --resume", "average"))
    words = {
        "train": train_words(),
        "translate": ["translate", str(model), "in", "--output", "out"],
        "translate --resume": ["translate", str(model), "in", "--output", "out", "--resume"],
        "average": ["average", str(model), "--output", "mean"],
    }[way]
    later = partial(time.sleep, draw.choice((0.0, 0.05, 0.2, 0.5)))
    outcomes = run_together([Command(words), Command(words, patch=later)], directory)
    try:
        for outcome in outcomes:
            check_manners(outcome)
        if all(outcome.code for outcome in outcomes):
            raise Fault(f"neither did it: {[outcome.refusal for outcome in outcomes]}")
        if way == "train":
            check_same_run(directory / "model", place / "whole")
        elif way == "average":
            Reference.load(directory / "mean")
        else:
            lines = (directory / "in").read_text().splitlines()
            check_translations(Reference.load(model), lines, (directory / "out").read_text())
    except (Fault, Unusable) as fault:
        raise Fault(f"{way} twice at the same time: {fault}") from fault
    return "one refused" if any(outcome.code for outcome in outcomes) else "both the same"


def closed_case(directory: Path, draw: random.Random) -> str:
    """Closes standard input, or gives text that can be read only once."""
    with copied(model_ground(), directory, "test.en", "test.de"):
        pass
    model = str(model_ground() / "model")
    way = draw.choice(("translate", "encode", "decode", "train", "pipe as corpus"))
    (directory / "pipe").touch()
    words = {
        "translate": ["translate", model],
        "encode": ["tokenizer", "encode", model],
        "decode": ["tokenizer", "decode", model],
        "train": ["tokenizer", "train", "/dev/stdin", "--vocab-size", "280", "--output", "t"],
        "pipe as corpus": ["evaluate", model, "--data", "pipe", "test.de", "--json", "--output", "out"],
    }[way]
    patch = partial(_make_pipe, "test.en") if way == "pipe as corpus" else None
    if way == "pipe as corpus":
        words[3] = "/dev/fd/9"
    outcome = run(Command(words, stdin=None if patch is None else b"", patch=patch), directory)
    try:
        check_manners(outcome)
        if way == "pipe as corpus" and outcome.code == 0:
            lines = (directory / "test.en").read_text().splitlines()
            check_translations(Reference.load(model_ground() / "model"), lines, (directory / "out").read_text())
        elif outcome.code == 0 and outcome.out:
            raise Fault(f"from nothing came {outcome.out!r}")
        elif outcome.code == 0:
            raise Fault("standard input is closed, and nothing is said")
    except Fault as fault:
        raise Fault(f"{way} with a closed standard input or a pipe: {fault}") from fault
    return "refused" if outcome.code else "read"


def _make_pipe(name: str) -> None:
    """Makes a pipe under a number, like `<(cat NAME)` in the shell."""
    read, write = os.pipe()
    os.write(write, Path(name).read_bytes())
    os.close(write)
    os.dup2(read, 9)
    os.set_inheritable(9, True)


GROUPS = {
    "a run goes on": Group(5, train_case),
    "a run begins again": Group(2, begin_case),
    "a run is over": Group(1, finished_case),
    "a translation goes on": Group(4, translation_case),
    "the same twice": Group(2, same_case),
    "outputs": Group(5, output_case),
    "tables": Group(4, table_case),
    "two processes": Group(2, processes_case),
    "at once": Group(1, at_once_case),
    "standard input": Group(1, closed_case),
}

if __name__ == "__main__":
    main("scripts.stress.inputs", __doc__, GROUPS, 200, "inputs")
