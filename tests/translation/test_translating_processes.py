"""Several processes at one file: one output in order, the same as that of one process, and an end for all."""

import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from echo import Echo, render
from launching import Launch

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.cli import main
from vanilla_transformer.data.lines import CorpusError, read_lines
from vanilla_transformer.translation import load_model, translate_lines
from vanilla_transformer.translation import processes as module
from vanilla_transformer.translation.files import Source, translate_windows
from vanilla_transformer.translation.lines import WINDOW as WINDOW_OF
from vanilla_transformer.translation.processes import AHEAD, OneProcess, ProcessesError, SeveralProcesses
from vanilla_transformer.translation.resuming import Place, ResumableFile, record_path

WINDOW = 3
# The command with small windows, of which one process hands in no more than the first three.
COMMAND = """
import os, signal, sys
from vanilla_transformer.translation import lines, processes
lines.WINDOW["cpu"] = 4
hand_in = processes.SeveralProcesses.hand_in

def last(self, number, result):
    if os.environ.get("RANK") == "1" and number > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    hand_in(self, number, result)

processes.SeveralProcesses.hand_in = last
from vanilla_transformer.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Slow(Echo):
    """An echo that takes its time, another one for each window."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def translate(self, lines, progress=lambda count: None):
        time.sleep(self.random.random() / 100)
        return super().translate(lines, progress)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in"
    path.write_text("".join(f"line {number}\n" for number in range(100)))
    return path


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(module, "_LOOK", 0.001)


def work_off(text, output, size, translators, *, texts=None, **options):
    """Does the work of `size` processes in as many threads; what went wrong in each, None where nothing did."""
    store, errors = torch.distributed.HashStore(), [None] * size

    def leading(processes):
        source = Source(read_lines(text), WINDOW)
        with ResumableFile(output, {}, resume=True) as file:
            source.skip(file.place)
            file.begin(WINDOW)
            processes.start(vars(file.place))
            translate_windows(translators[0], source, file, processes, render=render, **options)

    def taking_part(processes):
        place = Place(**processes.await_start())
        source = Source(read_lines((texts or {}).get(processes._rank, text)), WINDOW)
        source.skip(place)
        translate_windows(translators[processes._rank], source, None, processes, render=render)

    def run(rank):
        processes = SeveralProcesses(store, rank, size)
        try:
            leading(processes) if rank == 0 else taking_part(processes)
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    threads[0].join(60)
    assert not threads[0].is_alive()
    return errors


def alone(text, output):
    source, processes = Source(read_lines(text), WINDOW), OneProcess()
    with ResumableFile(output, {}, resume=False) as file:
        file.begin(WINDOW)
        processes.start(vars(file.place))
        translate_windows(Echo(), source, file, processes, render=render)
    return output.read_bytes()


@pytest.mark.parametrize("size", [2, 5])
def test_several_processes_write_what_one_writes_and_all_do_their_part(text, tmp_path, size):
    did = [[] for _ in range(size)]

    class Noting(Slow):
        def translate(self, lines, progress=lambda count: None):
            did[self.rank].append(lines)
            return super().translate(lines, progress)

    translators = [Noting(rank) for rank in range(size)]
    for rank, translator in enumerate(translators):
        translator.rank = rank
    done = []
    assert work_off(text, tmp_path / "out", size, translators, progress=done.append) == [None] * size
    assert (tmp_path / "out").read_bytes() == alone(text, tmp_path / "alone")
    assert all(did)
    lines = sorted((line for windows in did for window in windows for line in window), key=lambda x: int(x[5:]))
    assert lines == text.read_text().splitlines()
    # The main process hears of the lines of all.
    assert done == sorted(done) and done[-1] > 3 * len(did[0])


def test_what_one_number_of_processes_began_another_goes_on_with(text, tmp_path):
    class Broken(Echo):
        def translate(self, lines, progress=lambda count: None):
            if lines[0] == "line 30":
                raise MemoryError
            return super().translate(lines, progress)

    whole = alone(text, tmp_path / "alone")
    output = tmp_path / "out"
    with pytest.raises(MemoryError), ResumableFile(output, {}, resume=True) as file:
        file.begin(WINDOW)
        translate_windows(Broken(), Source(read_lines(text), WINDOW), file, OneProcess(), render=render)
    assert file.place.windows == 10
    assert work_off(text, output, 3, [Slow(rank) for rank in range(3)]) == [None] * 3
    assert output.read_bytes() == whole


def test_a_slow_process_holds_the_others_back(text, tmp_path):
    far, first = [], threading.Event()

    class First(Echo):
        def translate(self, lines, progress=lambda count: None):
            if lines[0] == "line 0":
                first.wait(10)
            else:
                far.append(int(lines[0][5:]) // WINDOW)
                if len(far) == 2 * AHEAD - 1:
                    # All that may be done before the first window is; a moment later still no more is.
                    threading.Timer(0.1, lambda: (assert_held.append(max(far)), first.set())).start()
            return super().translate(lines, progress)

    assert_held = []
    translator = First()
    assert work_off(text, tmp_path / "out", 2, [translator, translator]) == [None, None]
    assert assert_held == [2 * AHEAD - 1]
    assert (tmp_path / "out").read_bytes() == alone(text, tmp_path / "alone")


def test_a_line_that_cannot_be_read_ends_all_with_one_message_after_the_lines_before_it(text, tmp_path):
    lines = text.read_bytes().splitlines(keepends=True)
    text.write_bytes(b"".join([*lines[:70], b"\xff\n", *lines[71:]]))
    main, other = work_off(text, tmp_path / "out", 2, [Slow(0), Slow(1)])
    assert isinstance(main, CorpusError) and "line 71" in str(main) and other is None
    assert (tmp_path / "out").read_text().count("\n") == 2 * 70
    text.write_bytes(b"".join(lines))
    assert work_off(text, tmp_path / "out", 2, [Slow(0), Slow(1)]) == [None, None]
    assert (tmp_path / "out").read_bytes() == alone(text, tmp_path / "alone")


@pytest.mark.parametrize("content, message", [(b"line 0\n", "less in the input"), (b"\xff\n", "line 1: not UTF-8")])
def test_a_process_that_sees_another_input_ends_all(text, tmp_path, content, message):
    other = tmp_path / "other"
    other.write_bytes(content)
    main, _ = work_off(text, tmp_path / "out", 2, [Slow(0), Slow(1)], texts={1: other})
    assert isinstance(main, ProcessesError) and message in str(main)


def test_a_process_that_gives_no_sign_of_life_ends_all(text, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SILENCE", 0.2)

    class Hanging(Echo):
        def translate(self, lines, progress=lambda count: None):
            threading.Event().wait()

    main, _ = work_off(text, tmp_path / "out", 2, [Slow(0), Hanging()])
    assert isinstance(main, ProcessesError) and "Process 1 has given no sign of life" in str(main)


def test_a_process_that_gives_signs_may_take_its_time(text, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SILENCE", 0.3)
    monkeypatch.setattr(module, "_PULSE", 0.01)
    store, over = torch.distributed.HashStore(), threading.Event()
    main, other = (SeveralProcesses(store, rank, 2) for rank in range(2))
    signs = threading.Thread(target=other.give_signs, args=(over,))
    signs.start()
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        main.wait()
    over.set()
    signs.join()
    with pytest.raises(ProcessesError, match="no sign of life"):
        while time.monotonic() < end + 5:
            main.wait()


def agreed(*facts):
    """What became of processes that begin with these facts, the main one first."""
    store, results = torch.distributed.HashStore(), [None] * len(facts)

    def run(rank):
        def found(prepared):
            if isinstance(facts[rank], Exception):
                raise facts[rank]
            return facts[rank]

        try:
            results[rank] = SeveralProcesses(store, rank, len(facts)).agree(lambda: f"prepared by {rank}", found)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(facts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return results


def test_processes_agree_on_model_and_input_before_they_begin():
    same = {"model": "1234", "--num-beams": None}
    assert agreed(same, dict(same), dict(same)) == [f"prepared by {rank}" for rank in range(3)]
    main, one, other = agreed(same, same, same | {"model": "5678"})
    assert one == "prepared by 1"
    assert isinstance(main, ProcessesError) and str(main) == str(other)
    assert "Process 2 on" in str(main) and "sees another model than the main process (5678, and there 1234)" in str(
        main
    )
    main, other = agreed(same, OSError("There is no model directory m."))
    assert isinstance(main, ProcessesError) and "no model directory" in str(main)


@pytest.mark.parametrize(
    ("command", "differs", "message"),
    [
        (["translate", "model", "in", "--output", "out"], "in", "sees another input"),
        (["translate", "model", "in", "--output", "out"], "model/model.safetensors", "sees another model"),
        (["evaluate", "model", "--data", "in", "in.de"], "in", "sees another corpus"),
    ],
)
def test_processes_that_see_other_files_of_one_name_translate_nothing(model, tmp_path, command, differs, message):
    for rank in range(2):
        shutil.copytree(model, tmp_path / str(rank) / "model")
        for name in ("in", "in.de"):
            (tmp_path / str(rank) / name).write_text("a b\n" * 20)
    with open(tmp_path / "1" / differs, "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"c")
    (tmp_path / "0" / "out").write_text("of yesterday\n")
    words = [*command, "--num-beams", "1", "--max-length-beyond-source", "1"]
    launch = Launch(2, words, tmp_path / "launch", deed=functools.partial(go_to_own_directory, tmp_path))
    assert launch.codes() == [1, 1], launch.printed_by_all()
    for rank in range(2):
        assert message in launch.printed(rank)
    assert (tmp_path / "0" / "out").read_text() == "of yesterday\n"


def go_to_own_directory(folder, rank):
    os.chdir(folder / str(rank))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    sizes = {"vocab_size": 260, "d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    torch.manual_seed(0)
    VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**sizes)).save_pretrained(directory)
    VanillaTransformerTokenizer.train(["a b"], vocab_size=260).save_pretrained(directory)
    return directory


def test_under_torchrun_a_killed_process_ends_all_and_one_alone_goes_on(model, text, tmp_path, monkeypatch, capsys):
    script, output = tmp_path / "command.py", tmp_path / "out"
    script.write_text(COMMAND)
    words = ["translate", model, text, "--output", output, "--num-beams", 1, "--max-length-beyond-source", 1]
    words = [str(word) for word in words]
    killed = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", script, *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert killed.returncode != 0 and f"({signal.SIGKILL.name})" in killed.stderr
    assert killed.stderr.count("lines: the same command with --resume goes on.") == 1
    assert record_path(output).exists()
    begun = output.read_bytes()
    monkeypatch.setitem(WINDOW_OF, "cpu", 4)
    assert main([*words, "--resume", "--progress"]) == 0
    assert "100 of 100 lines" in capsys.readouterr().err
    translations = translate_lines(
        *load_model(model, device="cpu"), read_lines(text), window=4, num_beams=1, max_length_beyond_source=1
    )
    assert output.read_text(encoding="utf-8") == "".join(f"{translation.text}\n" for translation in translations)
    assert output.read_bytes().startswith(begun)
