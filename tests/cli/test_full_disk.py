"""A limit on the size of files, as of a disk that is full: outputs are whole or not there."""

import pytest
from faults import small_files
from small_models import save_translator

from vanilla_transformer.atomic_files import PARTIAL, atomic_directory
from vanilla_transformer.cli import main

TEXTS = [f"{one} {two}\n" for one in ("one", "two", "three", "four") for two in ("cats", "dogs", "mice")]
TRAIN = "--vocab-size 275 --preset tiny --d-model 16 --d-ff 32 --encoder-layers 1 --decoder-layers 1 --metrics chrf"
STEPS = "--max-steps 2 --save-steps 1 --average-checkpoints 1 --batch-tokens 60"
# Each way to write; OUT is the output.
COMMANDS = {
    "tokenizer": "tokenizer {text} --vocab-size 275 --output OUT",
    "train": f"train --train {{text}} {{text}} --dev {{text}} {{text}} {TRAIN} {STEPS} --output OUT",
    "translate": "translate {model} {text} --output OUT --batch-tokens 64",
    "translate-gz": "translate {model} {text} --output OUT.gz",
    "evaluate": "evaluate {model} --data {text} {text} --metrics chrf --output OUT",
    "attend": "attend {model} one --target two --output OUT.html",
    "convert": "convert {model} OUT",
    "explore": "explore {model} --output OUT",
    "onnx": "export {model} OUT --to onnx",
}
# These go on where they were, with what is there.
RESUMED = {"train", "translate", "translate-gz"}
# What they write is smaller than any block.
SMALL = {"translate", "translate-gz", "evaluate"}


@pytest.fixture(scope="session")
def things(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A text and a model; nothing is written to them."""
    home = tmp_path_factory.mktemp("things")
    (home / "text").write_text("".join(TEXTS))
    return {"text": str(home / "text"), "model": str(save_translator(home / "model", d_model=32))}


@pytest.mark.parametrize("others", [[], ["other"]])
def test_a_failure_takes_its_new_folders_away_and_nothing_of_others(tmp_path, others):
    with pytest.raises(KeyboardInterrupt), atomic_directory(tmp_path / "new" / "folder" / "model") as place:
        (place / "file").touch()
        for name in others:
            (tmp_path / "new" / name).touch()
        raise KeyboardInterrupt
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["new"] * bool(others) + others


@pytest.mark.parametrize("command", COMMANDS)
def test_a_limit_on_the_size_of_files_is_told_and_costs_nothing(command, things, tmp_path, capsys):
    """The command fails for want of room, says so, leaves nothing, and works later."""
    output = str(tmp_path / "output")
    words = [word.replace("OUT", output) for word in COMMANDS[command].format(**things).split()]
    with small_files(16 if command in SMALL else 20_000 if command == "explore" else 2048):
        assert main(words) == 1
    said = capsys.readouterr().err
    (error,) = (line for line in said.splitlines() if "error: " in line)
    assert "File too large" in error and "a bug" not in error
    assert "Traceback" not in said
    if command not in RESUMED:
        assert not list(tmp_path.iterdir())
    assert main(words) == 0, capsys.readouterr().err
    left_over = [path for path in tmp_path.rglob("*") if path.name.startswith(PARTIAL) or path.suffix == ".tmp"]
    assert not left_over
