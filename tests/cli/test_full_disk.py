"""A disk that is full, and a limit on the size of files: outputs are whole or not there, and are named."""

import os
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderForSequenceClassification,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.atomic_files import PARTIAL
from vanilla_transformer.cli import main

SIZES = {"d_model": 32, "d_ff": 64, "num_heads": 2}
LINES = [f"{one} {two}\n" for one in ("one", "two", "three", "four") for two in ("cats", "dogs", "mice")]
TRAIN = "--vocab-size 275 --preset tiny --d-model 16 --d-ff 32 --encoder-layers 1 --decoder-layers 1 --metrics chrf"
STEPS = "--max-steps 2 --save-steps 1 --average-checkpoints 1 --batch-tokens 60"
PAIR = "--train {text} {text}"
# What is written, and how; OUT is what is named.
COMMANDS = {
    "tokenizer": "tokenizer train {text} --vocab-size 275 --output OUT",
    "train": f"train {PAIR} --dev {{text}} {{text}} {TRAIN} {STEPS} --output OUT",
    "prepare": f"prepare {PAIR} --tokenizer {{model}} --tasks 1 --output OUT",
    "translate": "translate {model} {text} --output OUT --batch-tokens 64",
    "translate-gz": "translate {model} {text} --output OUT.gz",
    "translate-tasks": "translate {model} {text} --output OUT --tasks 2",
    "predict": "predict {classifier} {text} --output OUT",
    "evaluate": "evaluate {model} --data {text} {text} --metrics chrf --output OUT",
    "back-translate": "back-translate --reverse {model} {text} --output OUT --length-ratio 1000 --copy-overlap 1",
    "distil": "distil {model} {text} --output OUT --length-ratio 1000",
    "soft-targets": f"soft-targets {{model}} {PAIR} --top-k 4 --output OUT",
    "info": "info base --picture OUT.png",
    "attend": "attend {model} one --target two --output OUT.html",
    "attend-picture": "attend {model} one --target two --picture OUT.svg",
    "align": "align {model} {text} {text} --alignment-heads 0 --output OUT",
    "average": "average {model} {model} --output OUT",
    "convert": "convert {model} OUT",
    "marian": "export {model} OUT --to marian",
    "onnx": "export {model} OUT --to onnx",
    "ctranslate2": "export {model} OUT --to ctranslate2",
    "web": "export {model} OUT --to web",
    "clean": "clean {text} --output OUT",
    "join": "join {tasks} --output OUT",
}
# These go on where they were, with what is there.
RESUMED = {"train", "prepare", "translate", "translate-gz", "translate-tasks", "predict", "back-translate", "distil"}
RESUMED |= {"soft-targets"}
# What they write is smaller than any block.
SMALL = {
    "back-translate",
    "distil",
    "translate",
    "translate-gz",
    "translate-tasks",
    "predict",
    "evaluate",
    "align",
    "clean",
    "join",
}


@pytest.fixture(scope="session")
def things(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A text, models, and finished tasks; nothing is written to them."""
    home = tmp_path_factory.mktemp("things")
    (home / "text").write_text("".join(LINES))
    tokenizer = VanillaTransformerTokenizer.train(LINES, vocab_size=280)
    torch.manual_seed(1)
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), **SIZES, **layers)
    model = VanillaTransformerForConditionalGeneration(config)
    model.generation_config.max_length_beyond_source = 3
    model.save_pretrained(home / "model")
    tokenizer.save_pretrained(home / "model")
    labels = {"id2label": {0: "cat", 1: "dog"}, "label2id": {"cat": 0, "dog": 1}}
    kind = VanillaTransformerEncoderConfig(vocab_size=len(tokenizer), **SIZES, encoder_layers=1, **labels)
    VanillaTransformerEncoderForSequenceClassification(kind).save_pretrained(home / "classifier")
    tokenizer.save_pretrained(home / "classifier")
    named = {name: str(home / name) for name in ("text", "model", "classifier", "tasks")}
    assert main(["translate", named["model"], named["text"], "--output", named["tasks"], "--tasks", "1"]) == 0
    return named


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Within it this process makes no file larger than that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small disk of its own."""
    place = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"A disk can be mounted by root alone: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def filled(place: Path, left: int) -> Iterator[None]:
    """Within it a disk has that many bytes left."""
    filler = place / "filler"
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(place).free - left)
    try:
        yield
    finally:
        filler.unlink()


def walk(command: str, things: dict[str, str], place: Path, full: AbstractContextManager[None], capsys: Any) -> None:
    """The command fails for want of room, says so of what it was asked to write, leaves nothing, and works later."""
    words = [word.replace("OUT", str(place / "output")) for word in COMMANDS[command].format(**things).split()]
    with full:
        assert main(words) == 1
    said = capsys.readouterr().err
    (error,) = (line for line in said.splitlines() if "error: " in line)
    assert re.search("No space left on device|File too large", error), said
    # What is on its way to the output is named where it grows.
    assert str(place / "output") in error or re.search(rf"{tempfile.gettempdir()}(/tmp\w+/\S+)? cannot", error), error
    assert "a bug" not in error and "Traceback" not in said
    if command not in RESUMED:
        assert not list(place.iterdir())
    assert main(words) == 0, capsys.readouterr().err
    assert not [path for path in place.rglob("*") if path.name.startswith(PARTIAL) or path.suffix == ".tmp"]


# Graphs take long to write, and the limit shows the same of them.
@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"onnx", "web"}))
def test_a_full_disk_is_told_and_costs_nothing(command, things, disk, capsys):
    place = disk / command
    place.mkdir()
    try:
        walk(command, things, place, filled(disk, 0 if command in SMALL else 8192), capsys)
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_limit_on_the_size_of_files_is_told_and_costs_nothing(command, things, tmp_path, capsys):
    walk(command, things, tmp_path, limited(16 if command in SMALL else 2048), capsys)
