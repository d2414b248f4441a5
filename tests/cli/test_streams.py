"""Standard streams that are closed, cannot encode a character, fail, or are objects of another program."""

import errno
import io
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from faults import standard_streams
from small_models import SIZES, random_model, save, save_translator, small_recipe

from vanilla_transformer.cli import main, program
from vanilla_transformer.evaluation.scoring import Score
from vanilla_transformer.tokenizer import train_tokenizer
from vanilla_transformer.training.run import train
from vanilla_transformer.training.summary import TrainedRun

COMMAND = [sys.executable, "-m", "vanilla_transformer"]
SMALL = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in SIZES.items())
TRAIN = f"train --train ж ж --vocab-size 270 --max-steps 1 --metrics chrf --examples ж --processes 1 {SMALL}"
# Most print a character that Latin-1 does not have.
COMMANDS = [
    f"{TRAIN} --output жж",
    "translate model ж",
    "predict classifier ж",
    "evaluate model --data ж ж --metrics chrf --output жж",
    "info жlink",
    "attend model A --output жж",
    "align model ж ж --choose-heads",
    "average run --output жж",
    "tokenizer ж --vocab-size 270 --output жж",
    "convert model жж",
    "export model жж --to onnx",
    "explore model --output жж",
]


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """A text, a run, and models."""
    home = tmp_path_factory.mktemp("things")
    (home / "ж").write_text("ж один\nдва\n" * 9, encoding="utf-8")
    save_translator(home / "model", d_model=32)
    (home / "жlink").symlink_to("model")
    classifier = random_model("classifier", vocab_size=260, id2label={0: "ж", 1: "ш"})
    save(classifier, train_tokenizer(["a"], 260, begins=True), home / "classifier")
    train(small_recipe(home, output=str(home / "run"), max_steps=2))
    return home


@pytest.fixture
def home(things, tmp_path, monkeypatch):
    """A folder with links to these things."""
    for thing in things.iterdir():
        (tmp_path / thing.name).symlink_to(thing)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_writes_utf8_to_a_stream_of_another_encoding_and_does_without_any_stream(words, home):
    output = io.BytesIO()
    with standard_streams(stdout=io.TextIOWrapper(output, "latin-1")):
        assert main(words.split()) == 0
        assert output.getvalue().decode("utf-8").isascii() == words.startswith(("evaluate", "align", "tokenizer"))
    written = (home / "жж").exists() and (home / "жж").rename(home / "before").exists()
    with standard_streams(stdin=None, stdout=None, stderr=None):
        assert main(words.split()) == 0
    assert (home / "жж").exists() == written


def test_a_closed_standard_input_is_not_an_empty_one(home, capsys):
    with standard_streams(stdin=None):
        assert main(["translate", "model"]) == 1
    assert "standard input cannot be read: Bad file descriptor." in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="Windows has no sh")
def test_a_file_does_not_get_the_number_of_a_closed_stream(home):
    words = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *COMMAND, "translate", "model", "ж", "--output", "жж"]
    assert subprocess.run(words).returncode == 0
    assert (home / "жж").read_text(encoding="utf-8").count("\n") == 18


def test_a_run_is_finished_before_its_output_fails(home):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, standard_streams(stdout=pipe):
        assert main([*TRAIN.split(), "--output", "out"]) == 141
    assert TrainedRun(home / "out").summary and (home / "out" / "README.md").is_file()


class Stream:
    """An object of a program, which has no more than it must."""

    def __init__(self, error=None):
        self.written, self.error = "", error

    def write(self, text):
        if self.error:
            raise self.error
        self.written += text

    def flush(self):
        pass


@pytest.mark.parametrize("stream", [None, Stream(), Stream(OSError(errno.EIO, "")), Stream(ValueError("closed file"))])
def test_python_trains_whatever_a_program_has_put_in_place_of_the_streams(home, stream):
    recipe = small_recipe(home, output="out", metrics=("chrf",), examples=("ж",))
    with standard_streams(stdin=stream, stdout=stream, stderr=stream):
        assert isinstance(train(recipe).scores["dev"]["chrf"], Score)
        assert train(recipe).summary is not None  # It says that there is nothing to do.
    if stream is not None and not stream.error:
        assert "ж\t" in stream.written and "nothing to do" in stream.written and "\r" not in stream.written


def test_help_for_a_narrow_terminal_ends():
    environment = {**os.environ, "COLUMNS": "5"}
    for words in ["--help"], ["train", "--max-stops", "3"]:
        done = subprocess.run([*COMMAND, *words], env=environment, capture_output=True, timeout=60)
        assert done.returncode == (0 if words == ["--help"] else 2)


def test_without_docstrings_it_says_which_option_of_python_removes_them(monkeypatch):
    monkeypatch.setattr(sys, "flags", SimpleNamespace(optimize=2))
    said = program.error_message(ValueError("No `Args` section is found in the docstring of `BaseModelOutput`."))
    assert "-OO" in said and "use -O instead" in said
