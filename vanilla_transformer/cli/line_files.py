"""Shared parts of commands that answer line by line: as lines come, or from file to file with `--resume`."""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from vanilla_transformer.cli.arguments import UsageError
from vanilla_transformer.cli.streams import (
    check_standard_output,
    open_output,
    refuse_directories,
    refuse_model_file,
    refuse_same_file,
    warn,
)
from vanilla_transformer.progress import progress_bar

if TYPE_CHECKING:
    from vanilla_transformer.translation.files import Answer
    from vanilla_transformer.translation.resuming import ResumableFile


@dataclass(frozen=True)
class Answering:
    """A function that answers lines, and the form of its answers.

    Attributes:
        work: Answers lines, in order, and reports how many are done.
        chunk_lines: Number of lines best answered together.
        render: Returns the output for a line, given its number from 0.
        progress: Whether to show progress if standard error is not a terminal.
        unit: Name of the lines in it.
    """

    work: "Callable[[list[str], Callable[[int], object]], Sequence[Answer]]"
    chunk_lines: int
    render: Callable[[int, Any], str]
    progress: bool
    unit: str = "lines"


def check_paths(model: str, input: Path | None, output: Path | None) -> None:
    """Refuses unreadable input, unwritable output and overwriting needed files, before a model is loaded."""
    refuse_directories(input, output)
    if input is None and sys.stdin is None:
        raise UsageError("Standard input is closed: name a file to read, or send lines through a pipe.")
    refuse_same_file(input, output)
    refuse_model_file(model, output)
    if output is None:
        check_standard_output()
        return
    from vanilla_transformer.translation.resuming import record_path

    refuse_same_file(input, record_path(output))


def answer_stream(
    answering: Answering,
    lines: Iterable[str | None],
    output: Path | None,
    *,
    total: Callable[[], int | None] | None,
    typed: bool,
) -> None:
    """Answers lines as they come, or into an output from which none can be taken back.

    Args:
        total: Counts the lines, if they can be counted.
        typed: Whether somebody types them.
    """
    from vanilla_transformer.translation.lines import chunks

    number = 0
    with (
        open_output(output) as file,
        progress_bar(answering.progress, answering.unit, total=total, in_the_way=typed or file.isatty()) as bar,
    ):
        for chunk in chunks(lines, answering.chunk_lines):
            for answer in answering.work(chunk, bar.update):
                print(answering.render(number, answer), file=file)
                number += 1
                if answer.truncated:
                    warn(f"line {number} is too long for the model and was cut.")


def answer_file(
    answering: Answering,
    lines: Iterable[str],
    output: Path,
    *,
    job: dict[str, Any],
    resume: bool,
    begin: Callable[[], object],
    total: Callable[[], int | None] | None,
) -> None:
    """Answers the lines of a file into a file.

    Args:
        job: Settings that must be the same for the file to be resumed.
        resume: Whether to continue an existing output.
        begin: Called before the first line is answered.
        total: Counts the lines.
    """
    from vanilla_transformer.translation.files import ChunkReader, process_file
    from vanilla_transformer.translation.resuming import ResumableFile

    with ResumableFile(output, job, resume=resume) as file:
        reader = ChunkReader(lines, file.state.chunk_lines or answering.chunk_lines)
        reader.skip(file.state)
        if file.state.finished:
            print(f"{output} is finished: {file.state.lines:,} lines.", file=sys.stderr)
            return
        file.begin(reader.size)
        begin()
        with (
            _advice_where_it_ends(file),
            progress_bar(answering.progress, answering.unit, total=total, done=file.lines) as bar,
        ):
            process_file(answering.work, reader, file, render=answering.render, progress=bar.update, warn=warn)


@contextmanager
def _advice_where_it_ends(output: "ResumableFile") -> Iterator[None]:
    """Reports how far the work got and how to continue if it ends early, SIGTERM included."""

    def stop(signum: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BaseException:
        if output.lines:
            warn(
                f"{output.path} holds the first {output.lines:,} lines: to continue, run the same command with "
                "--resume."
            )
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
