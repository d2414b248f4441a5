"""`vanilla-transformer translate` from a file to a file: broken off, resumed, refused, and told how far it is."""

import pytest
import torch
from faults import at_call, interrupt, standard_streams
from small_models import save_translator

from vanilla_transformer.cli import main
from vanilla_transformer.graph.session import Session
from vanilla_transformer.translation import Translator

# Learned positions end the source, and with it the time that a line takes.
POSITIONS = {"positional_encoding": "learned", "max_position_embeddings": 12}
LINES = ["a b", "", "c d e", "b", "a", "d " * 20, "a b c", "e"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_translator(tmp_path_factory.mktemp("model"), **POSITIONS)


@pytest.fixture
def run(quiet_libraries, small_windows, capsys, monkeypatch, tmp_path, model):
    """Translates from `in`, and gives exit code and standard error, which is no terminal here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES))

    def run(*words, model=model, beams=2):
        settings = ["--num-beams", beams, "--max-length-beyond-source", 1]
        settings += [] if "--precision" in words else ["--precision", "float32"]
        try:
            code = main([str(word) for word in ("translate", model, *words, *settings)])
        except SystemExit as done:
            code = done.code
        return code, capsys.readouterr().err

    return run


@pytest.fixture
def break_off(run):
    """Translates until the second window begins, in which `happen` happens."""

    def break_off(happen, *words, **options):
        with at_call(2, Translator, "translate", happen):
            return run(*words, **options)

    return break_off


@pytest.mark.parametrize("options", [[], ["--nbest", "2"]])
def test_resume_after_an_interruption_completes_the_output(run, break_off, tmp_path, options):
    assert run("in", "--output", "whole", *options)[0] == 0
    code, err = break_off(interrupt, "in", "--output", "out", *options)
    assert (code, err) == (130, "")
    begun = (tmp_path / "out").read_bytes()
    with open(tmp_path / "out", "ab") as file:
        file.write(b"half a li")
    code, err = run("in", "--output", "out", *options, "--resume")
    # What was cut is named by its number in the whole input.
    assert (code, err) == (0, "vanilla-transformer: warning: line 6 is too long for the model and was cut.\n")
    whole = (tmp_path / "whole").read_bytes()
    assert (tmp_path / "out").read_bytes() == whole and whole.startswith(begun) and begun
    if options:
        numbers = [int(line.split(" ||| ")[0]) for line in whole.decode().split("\n")[:-1]]
        assert numbers == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    assert run("in", "--output", "out", *options, "--resume") == (0, "")
    assert (tmp_path / "out").read_bytes() == whole


def test_memory_that_a_cpu_does_not_have_is_said_as_that_of_other_devices(run):
    with at_call(1, Session, "search", lambda: torch.empty(1 << 50)):
        code, err = run("in", "--output", "out")
    assert code == 1 and "Out of memory" in err and "reduce --batch-tokens" in err


def test_standard_input_is_never_written_over(run, tmp_path):
    file = tmp_path / "in"
    (tmp_path / "link").symlink_to("in")
    for words in (["--output", "link"], []):
        with open(file) as read, open(file, "a") as added, standard_streams(stdin=read, stdout=added):
            code, err = run(*words)
        assert code == 2 and "cannot be both input and output" in err
        assert file.read_text().splitlines() == LINES


def test_standard_input_that_is_a_file_is_resumed_too(run, break_off, tmp_path):
    for words in ([], ["--resume"]):
        with open(tmp_path / "in") as file, standard_streams(stdin=file):
            act = run if words else lambda *arguments: break_off(interrupt, *arguments)
            assert act("--output", "out", *words)[0] == (0 if words else 130)
    assert run("in", "--output", "whole")[0] == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_table_is_read_as_lines_and_this_is_told(run, tmp_path):
    (tmp_path / "in.csv").write_text("source\na b\n")
    code, err = run("in.csv", "--output", "out")
    assert code == 0 and "in.csv is read as lines of text, not as a table" in err
    assert (tmp_path / "out").read_text().count("\n") == 2 and "table" not in run("in", "--output", "out")[1]


def test_under_a_launcher_it_says_to_start_it_by_itself(run, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, err = run("in", "--output", "out")
    assert code == 2 and "launcher such as torchrun: start this command by itself" in err
