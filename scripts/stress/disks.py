"""Fills disks under every command, and flips bits of prepared shards: nothing is lost, and nothing wrong is learned.

A full disk needs the right to mount one.
"""

import contextlib
import os
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.stress.cases import (
    SIZES,
    STEPS,
    Command,
    Fault,
    Group,
    check_manners,
    corpora,
    ground,
    main,
    run,
    snapshot,
    succeed,
    write_corpora,
)
from scripts.stress.models import WEIGHTS

_TEXTS = [f"{one} {two}\n" for one in ("one", "two", "three", "four") for two in ("cats", "dogs", "mice")]
_TRAIN = "--vocab-size 275 --preset tiny --d-model 16 --d-ff 32 --encoder-layers 1 --decoder-layers 1 --metrics chrf"
_STEPS = "--max-steps 2 --save-steps 1 --average-checkpoints 1 --batch-tokens 60"
_PAIR = "--train {text} {text}"
# Everything that writes, and what it writes of; OUT is what is named.
COMMANDS = {
    "tokenizer": "tokenizer train {text} --vocab-size 275 --output OUT",
    "train": f"train {_PAIR} --dev {{text}} {{text}} {_TRAIN} {_STEPS} --output OUT",
    "prepare": f"prepare {_PAIR} --tokenizer {{model}} --tasks 1 --output OUT",
    "translate": "translate {model} {text} --output OUT --batch-tokens 64",
    "translate-gz": "translate {model} {text} --output OUT.gz",
    "translate-tasks": "translate {model} {text} --output OUT --tasks 2",
    "predict": "predict {classifier} {text} --output OUT",
    "evaluate": "evaluate {model} --data {text} {text} --metrics chrf --output OUT",
    "attend": "attend {model} one --target two --output OUT.html",
    "attend-picture": "attend {model} one --target two --picture OUT.svg",
    "align": "align {model} {text} {text} --alignment-heads 0 --output OUT",
    "average": "average {model} {model} --output OUT",
    "convert": "convert {model} OUT",
    "marian": "export {model} OUT --to marian",
    "onnx": "export {model} OUT --to onnx",
    "ctranslate2": "export {model} OUT --to ctranslate2",
    "join": "join {tasks} --output OUT",
}
# These go on where they were, with what is there.
RESUMED = {"train", "prepare", "translate", "translate-gz", "translate-tasks", "predict"}
# What they write is smaller than any block.
SMALL = {"translate", "translate-gz", "translate-tasks", "predict", "evaluate", "align", "join"}


def make_ground(home: Path) -> dict[str, str]:
    """Makes a text, a model and a classifier; returns what stands for each name in `COMMANDS`, `tasks` to be made."""
    import torch

    from vanilla_transformer import (
        VanillaTransformerConfig,
        VanillaTransformerEncoderConfig,
        VanillaTransformerEncoderForSequenceClassification,
        VanillaTransformerForConditionalGeneration,
        VanillaTransformerTokenizer,
    )

    (home / "text").write_text("".join(_TEXTS))
    tokenizer = VanillaTransformerTokenizer.train(_TEXTS, vocab_size=280)
    torch.manual_seed(1)
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "d_model": 32,
        "d_ff": 64,
        "num_heads": 2,
        "encoder_layers": 1,
    }
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**sizes, decoder_layers=1))
    model.generation_config.update(max_length_beyond_source=3)
    labels: dict[str, Any] = {"id2label": {0: "cat", 1: "dog"}, "label2id": {"cat": 0, "dog": 1}}
    kind = VanillaTransformerEncoderConfig(**sizes, **labels)
    classifier = VanillaTransformerEncoderForSequenceClassification(kind)
    for name, made in (("model", model), ("classifier", classifier)):
        made.save_pretrained(home / name)
        tokenizer.save_pretrained(home / name)
    return {name: str(home / name) for name in ("text", "model", "classifier", "tasks")}


def words_of(command: str, things: dict[str, str], output: str) -> list[str]:
    """Returns the words of a command that writes there."""
    return [word.replace("OUT", output) for word in COMMANDS[command].format(**things).split()]


@contextlib.contextmanager
def mounted(place: Path) -> Iterator[None]:
    """Mounts a small disk of its own.

    Raises:
        PermissionError: Only root can mount one.
    """
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], capture_output=True)
    if done.returncode:
        raise PermissionError(f"A disk can be mounted by root alone: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextlib.contextmanager
def filled(place: Path, left: int) -> Iterator[None]:
    """Fills a disk so that it has that many bytes left."""
    filler = place / "filler"
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(place).free - left)
    try:
        yield
    finally:
        filler.unlink()


def check_refusal(error: str, output: str) -> None:
    """Checks that a refusal says what the file system said, and of which output.

    Raises:
        Fault: It says something else.
    """
    # An export builds some files in a temporary folder: these are named where they grow.
    growing = rf"{tempfile.gettempdir()}(/(tmp|vanilla-transformer-)\w+/\S+)? cannot"
    if not re.search("No space left on device|File too large", error) or "a bug" in error:
        raise Fault(f"not refused for want of room: {error}")
    if output not in error and not re.search(growing, error):
        raise Fault(f"refused without {output}: {error}")


def check_nothing_left_over(place: Path) -> None:
    """Checks that no file is there that was on its way to another.

    Raises:
        Fault: There is one.
    """
    from vanilla_transformer.atomic_files import PARTIAL

    if left := [path.name for path in place.rglob("*") if path.name.startswith(PARTIAL) or path.suffix == ".tmp"]:
        raise Fault(f"left over: {', '.join(left)}")


def _things() -> dict[str, str]:
    place = ground("disks", make_ground)
    return {name: str(place / name) for name in ("text", "model", "classifier", "tasks")}


def _done(command: str) -> dict[str, str]:
    """Returns the files that a command writes with room enough, as a snapshot without what each run has of its own."""

    def make(place: Path) -> None:
        for name in ("one", "other"):
            (place / name).mkdir()
            succeed(Command(words_of(command, _things(), "output")), place / name)

    place = ground(f"done {command}", make)
    one, other = snapshot(place / "one"), snapshot(place / "other")
    return {name: value if other[name] == value else "" for name, value in one.items()}


def full_disk_case(directory: Path, draw: random.Random) -> str:
    """Runs a command on a disk with little room, and once more with enough."""
    things = _things()
    if not Path(things["tasks"]).exists():
        succeed(Command([*words_of("translate-tasks", things, things["tasks"])]), directory)
    command = draw.choice(sorted(COMMANDS))
    wanted = _done(command)
    # tmpfs gives away whole pages.
    left = 4096 * draw.choice((0, 0, 1, 2, 3, 5, 8, 13, 21, 40, 80, draw.randrange(100)))
    disk = directory / "disk"
    with mounted(disk):
        words = words_of(command, things, "output")
        try:
            with filled(disk, left):
                outcome = run(Command(words, cwd="disk"), directory)
                check_manners(outcome)
                if outcome.code:
                    check_refusal(outcome.refusal, "output")
                    kept = {path.name for path in disk.iterdir()} - {"filler"}
                    if kept and command not in RESUMED:
                        raise Fault(f"refused, and yet left {', '.join(sorted(kept))}")
            again = run(Command(words, cwd="disk"), directory) if outcome.code else outcome
            check_manners(again)
            if again.code:
                raise Fault(f"refused with room enough: {again.refusal}")
            check_nothing_left_over(disk)
            found = snapshot(disk)
            if found.keys() != wanted.keys():
                raise Fault(f"other files than with room: {', '.join(sorted(found.keys() ^ wanted.keys()))}")
            if other := [name for name, value in wanted.items() if value and found[name] != value]:
                raise Fault(f"{', '.join(other)} is not what it is with room")
        except Fault as fault:
            raise Fault(f"{command} with {left:,} bytes left: {fault}") from fault
    return "refused, then whole" if outcome.code else "had room"


RUN = f"{SIZES} {STEPS} --max-steps 6 --save-steps 3 --eval-steps 6 --seed 1 --average-checkpoints 1".split()


def _train_words(output: str) -> list[str]:
    options = [word for pair in zip(RUN[::2], RUN[1::2], strict=True) if pair[0] != "--vocab-size" for word in pair]
    return ["train", "--train", "prepared:shards", *corpora("dev"), *options, "--output", output]


def _make_shards(place: Path) -> None:
    write_corpora(place, train=60)
    prepared = [*corpora("train"), "--vocab-size", "280", "--tasks", "3", "--output", "shards"]
    succeed(Command(["prepare", *prepared]), place)
    succeed(Command(_train_words("whole")), place)


def shard_case(directory: Path, draw: random.Random) -> str:
    """Flips a bit of a file of a prepared corpus, and trains on it."""
    place = ground("shards", _make_shards)
    shutil.copytree(place / "shards", directory / "shards")
    for name in ("dev.en", "dev.de"):
        shutil.copy(place / name, directory / name)
    files = sorted(path for path in (directory / "shards").rglob("*") if path.is_file())
    # Files of text are as likely as those of tokens, of which there are more.
    kind = draw.choice(sorted({path.suffix for path in files}))
    file = draw.choice([path for path in files if path.suffix == kind])
    data = bytearray(file.read_bytes())
    if not data:
        return "an empty file"
    byte, bit = draw.randrange(len(data)), draw.randrange(8)
    data[byte] ^= 1 << bit
    file.write_bytes(bytes(data))
    outcome = run(Command(_train_words("model")), directory)
    name = file.relative_to(directory).as_posix()
    try:
        check_manners(outcome)
        if outcome.code:
            if "shards" not in outcome.refusal:
                raise Fault(f"refused without the folder: {outcome.refusal}")
            return "refused"
        if (directory / "model" / WEIGHTS).read_bytes() != (place / "whole" / WEIGHTS).read_bytes():
            raise Fault("another model was learned, and nothing said")
    except Fault as fault:
        raise Fault(f"bit {bit} of byte {byte} of {name}: {fault}") from fault
    return "as without damage"


GROUPS = {"full disk": Group(1, full_disk_case), "flipped bit": Group(1, shard_case)}

if __name__ == "__main__":
    main("scripts.stress.disks", __doc__, GROUPS, 200, "cases")
