"""Files of translations: whole chunks in order, and the same bytes however often the work was broken off."""

import gzip
import os
import resource
import shutil
import signal

import pytest
from echo import Echo, render
from refusals import refused

from vanilla_transformer.data.text_lines import CorpusError, read_lines
from vanilla_transformer.extras.resuming.chunk_reader import ChunkReader, process_file
from vanilla_transformer.extras.resuming.resumable_file import (
    ResumableFile,
    ResumeError,
    record_path,
    refuse_unfinished,
)

CHUNK = 3
LINES = [f"line {number} ä" for number in range(8)]
JOB = {"model": "tiny", "--num-beams": 4}
# What the writing of a file is made of.
STEPS = ("write", "fsync", "replace", "ftruncate", "unlink")


@pytest.fixture(params=["out", "out.gz"])
def output(request, tmp_path):
    return tmp_path / request.param


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def translate(text, output, *, resume=True, job=JOB, translator=None, **options):
    """Translates as the command does, and gives the number of lines that were there before."""
    reader = ChunkReader(read_lines(text), CHUNK)
    with ResumableFile(output, job, resume=resume) as file:
        reader.skip(file.state)
        if not file.state.finished:
            file.begin(CHUNK)
            process_file((translator or Echo()).translate, reader, file, render=render, **options)
        return file.state.lines


def expected(text, output):
    """The output of an uninterrupted run."""
    whole = output.with_name(f"whole-{output.name}")
    translate(text, whole, resume=False)
    assert not record_path(whole).exists()
    return whole.read_bytes()


def broken_off(at, *arguments, **options):
    """Translates in a process that is killed at a step of the writing; whether it came that far.

    At a write, half of it is done.
    """
    child = os.fork()
    if child == 0:
        left = at

        def counted(step):
            def run(*values, **named):
                nonlocal left
                left -= 1
                if left == 0:
                    if step is write:
                        step(values[0], values[1][: len(values[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return step(*values, **named)

            return run

        write = os.write
        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        try:
            translate(*arguments, **options)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_repeatedly_killed_run_writes_the_uninterrupted_output(text, output):
    whole = expected(text, output)
    at = 1
    while broken_off(at, text, output, resume=False):
        assert whole.startswith(output.read_bytes())
        broken_off(at, text, output)
        assert whole.startswith(output.read_bytes())
        translate(text, output)
        assert output.read_bytes() == whole
        output.unlink()
        record_path(output).unlink()
        at += 1
    assert at > 5 * len(LINES) // CHUNK
    assert output.read_bytes() == whole and not record_path(output).exists()


def test_chunks_that_are_on_the_disk_are_not_translated_again(text, output):
    translated = []

    class Stopping(Echo):
        def translate(self, lines, progress=None):
            if len(translated) == 2:
                raise KeyboardInterrupt
            translated.append(lines)
            return super().translate(lines)

    with pytest.raises(KeyboardInterrupt):
        translate(text, output, translator=Stopping())
    with open(output, "ab") as file:
        file.write(b"half a li")  # What came to the disk after the last record.
    seen = []

    class Seeing(Echo):
        def translate(self, lines, progress=None):
            seen.append(lines)
            return super().translate(lines)

    translate(text, output, translator=Seeing())
    assert translated + seen == [LINES[start : start + CHUNK] for start in range(0, len(LINES), CHUNK)]
    assert output.read_bytes() == expected(text, output)


def test_finished_output_and_its_record_stay_under_resume(text, output):
    translate(text, output)
    before = output.read_bytes()
    assert translate(text, output, translator=None) == len(LINES)
    assert output.read_bytes() == before and record_path(output).exists()
    # Without --resume it is translated anew, and nothing but the file is left.
    translate(text, output, resume=False)
    assert output.read_bytes() == before and not record_path(output).exists()


def test_gzip_in_parts_reads_as_the_plain_output(text, tmp_path):
    assert gzip.decompress(expected(text, tmp_path / "out.gz")) == expected(text, tmp_path / "out")


def stopped_after(chunks, text, output):
    """Leaves an output of so many chunks."""
    with pytest.raises(CorpusError):
        broken = text.with_name("broken")
        broken.write_bytes("".join(f"{line}\n" for line in LINES[: chunks * CHUNK + 1]).encode() + b"\xff\n")
        translate(broken, output)


def test_lines_before_invalid_utf8_are_written_and_the_run_resumes(text, output):
    stopped_after(2, text, output)
    opened = gzip.open if output.suffix == ".gz" else open
    with opened(output, "rt", encoding="utf-8") as file:
        written = file.read()
    assert written.count("\n") == 2 * (2 * CHUNK + 1) and written.endswith("6: once more\n")
    # The line before it was translated in a smaller chunk, and is now in a whole one.
    assert translate(text, output) == len(LINES)
    assert output.read_bytes() == expected(text, output)


@pytest.mark.parametrize(
    "change, named",
    [
        (lambda text, output: text.write_text("another\n" * 20), "input changed"),
        (lambda text, output: text.write_text(LINES[0]), "input changed"),
        (lambda text, output: output.write_bytes(b"x" + output.read_bytes()[1:]), "begin"),
        (lambda text, output: output.write_bytes(output.read_bytes()[:20]), "begin"),
        (lambda text, output: output.unlink(), "begin"),
        (lambda text, output: record_path(output).unlink(), "--resume"),
        (lambda text, output: record_path(output).write_text("{"), "damaged"),
    ],
)
def test_a_mismatched_output_is_neither_resumed_nor_touched(text, output, change, named):
    stopped_after(2, text, output)
    change(text, output)
    before = output.read_bytes() if output.exists() else b""
    with refused(ResumeError, *named.split()):
        translate(text, output)
    assert output.read_bytes() == before


@pytest.mark.parametrize("job", [{**JOB, "--num-beams": 1}, {"model": "tiny"}, {**JOB, "--new": 3}])
def test_another_job_is_refused_with_the_setting_that_differs(text, output, job):
    stopped_after(1, text, output)
    [name] = {name for name in {**JOB, **job} if job.get(name) != JOB.get(name)}
    with refused(ResumeError, name):
        translate(text, output, job=job)


def test_an_input_that_grew_after_the_end_is_not_taken_for_finished(text, output):
    translate(text, output)
    with text.open("a") as file:
        file.write("one more\n")
    with refused(ResumeError, "finished", "8 lines"):
        translate(text, output)


def test_lines_that_were_not_read_yet_may_change(text, output):
    stopped_after(2, text, output)
    text.write_text("".join(f"{line}\n" for line in [*LINES[:6], "new"]), encoding="utf-8")
    translate(text, output)
    assert output.read_bytes() == expected(text, output)


def test_an_unfinished_output_is_not_overwritten_unless_nothing_is_in_it(text, output):
    stopped_after(2, text, output)
    for attempt in (lambda: translate(text, output, resume=False), lambda: refuse_unfinished(output)):
        with refused(ResumeError, "6 lines", "unfinished"):
            attempt()
    output.unlink()
    translate(text, output, resume=False)
    assert output.read_bytes() == expected(text, output)


def test_a_finished_output_is_overwritten_to_its_end(text, output):
    output.write_bytes(b"x" * 10_000)
    translate(text, output, resume=False)
    assert output.read_bytes() == expected(text, output)


def test_two_processes_do_not_write_the_same_output(text, output):
    with ResumableFile(output, JOB, resume=True), refused(ResumeError, "Another process"):
        translate(text, output)
    translate(text, output)


def test_full_disk_leaves_whole_lines_and_the_run_resumes(text, tmp_path):
    output = tmp_path / "out"
    whole = expected(text, output)
    for size in range(0, len(whole), 61):
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            try:
                translate(text, output)
            except OSError as error:
                os._exit(3 if str(error).startswith(f"{output} cannot be written: ") else 4)
            finally:
                os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        written = output.read_bytes()
        assert whole.startswith(written) and written[-1:] in (b"", b"\n")
        assert not list(tmp_path.glob("*.tmp"))
        translate(text, output)
        assert output.read_bytes() == whole
        output.unlink()
        record_path(output).unlink()


def test_a_directory_that_vanishes_is_named(text, tmp_path):
    directory = tmp_path / "directory"
    directory.mkdir()

    def vanish(number, translation):
        if number == 5:
            shutil.rmtree(directory)
        return translation.text

    reader = ChunkReader(read_lines(text), CHUNK)
    with ResumableFile(directory / "out", JOB, resume=False) as file:
        file.begin(CHUNK)
        with refused(OSError, directory):
            process_file(Echo().translate, reader, file, render=vanish)
    with refused(OSError, "no directory"):
        translate(text, directory / "out")


def test_lines_that_were_cut_are_named_in_order_and_progress_counts_all(tmp_path):
    (tmp_path / "in").write_text("a\nx\nb\nc\nd\ne\nf\nx\n")
    warned, done = [], []
    translate(tmp_path / "in", tmp_path / "out", warn=warned.append, progress=done.append)
    assert [warning.split()[1] for warning in warned] == ["2", "8"]
    assert sum(done) == 8


def test_an_empty_input_gives_an_empty_output(tmp_path):
    (tmp_path / "in").write_text("")
    for _ in range(2):
        translate(tmp_path / "in", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == b""
