"""Shared parts of commands that answer line by line: as lines come, or from file to file with `--resume`."""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from vanilla_transformer.cli.arguments import UsageError
from vanilla_transformer.cli.streams import (
    answer_promptly,
    can_be_read_again,
    check_standard_output,
    count_lines,
    is_file,
    is_typed,
    open_output,
    read_input,
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


class LineSource:
    """The lines of a file or of standard input, answered into an output.

    From a file into a file the answers can be resumed; otherwise lines are answered as they come.

    Args:
        input: File to read; None for standard input.
        output: File to write; None for standard output.
        resume: Whether to continue an existing output.
        rows: The rows of a table, as lines, instead of the lines of the input.
    """

    def __init__(
        self, input: Path | None, output: Path | None, *, resume: bool, rows: Iterator[str] | None = None
    ) -> None:
        rereadable = can_be_read_again(input)
        self.output, self.resume = output, resume
        self.is_resumable = rereadable and is_file(output)
        if resume and not self.is_resumable:
            raise UsageError("--resume needs an input file and an --output file to continue, not a pipe.")
        if output is not None and not self.is_resumable:
            from vanilla_transformer.translation.resuming import refuse_unfinished

            refuse_unfinished(output)
        self.typed = is_typed(input)
        self.total = partial(count_lines, input) if rereadable and rows is None else None
        self.lines: Iterable[Any] = read_input(input) if rows is None else rows
        if rows is None and not self.is_resumable:
            self.lines = answer_promptly(self.lines, input)

    def answer(self, answering: Answering, job: Callable[[], dict[str, Any]], begin: Callable[[], object]) -> None:
        """Answers the lines.

        Args:
            answering: A function that answers them.
            job: Returns the settings that must be the same for an output to be resumed.
            begin: Called before the first line is answered.
        """
        if self.is_resumable:
            self._answer_file(answering, job(), begin)
        else:
            begin()
            self._answer_stream(answering)

    def _answer_stream(self, answering: Answering) -> None:
        """Answers lines as they come, or into an output from which none can be taken back."""
        from vanilla_transformer.translation.lines import chunks

        number = 0
        with (
            open_output(self.output) as file,
            progress_bar(
                answering.progress, answering.unit, total=self.total, in_the_way=self.typed or file.isatty()
            ) as bar,
        ):
            for chunk in chunks(self.lines, answering.chunk_lines):
                for answer in answering.work(chunk, bar.update):
                    print(answering.render(number, answer), file=file)
                    number += 1
                    if answer.truncated:
                        warn(f"line {number} is too long for the model and was cut.")

    def _answer_file(self, answering: Answering, job: dict[str, Any], begin: Callable[[], object]) -> None:
        from vanilla_transformer.translation.files import ChunkReader, process_file
        from vanilla_transformer.translation.resuming import ResumableFile

        assert self.output is not None
        with ResumableFile(self.output, job, resume=self.resume) as file:
            reader = ChunkReader(self.lines, file.state.chunk_lines or answering.chunk_lines)
            reader.skip(file.state)
            if file.state.finished:
                print(f"{self.output} is finished: {file.state.lines:,} lines.", file=sys.stderr)
                return
            file.begin(reader.size)
            begin()
            with (
                _advice_where_it_ends(file),
                progress_bar(answering.progress, answering.unit, total=self.total, done=file.lines) as bar,
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
