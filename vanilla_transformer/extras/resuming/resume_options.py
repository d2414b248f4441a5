"""The option of `translate` and `predict` to continue an output."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from vanilla_transformer.cli.arguments import Flag, UsageError
from vanilla_transformer.cli.streams import can_be_read_again, is_file, refuse_same_file, warn
from vanilla_transformer.progress import progress_bar

if TYPE_CHECKING:
    from vanilla_transformer.cli.line_files import Answering, LineSource
    from vanilla_transformer.extras.resuming.resumable_file import ResumableFile


@dataclass(frozen=True)
class ResumeOptions:
    """Continuing: from file to file, an interrupted output can be finished."""

    resume: Flag = False
    """Continue an unfinished output where it stopped, with the same result.
    Model, input, search settings and precision must match those recorded in OUTPUT.resume;
    --device and --batch-tokens may differ, which can change the last digits of scores.
    OUTPUT.resume stays after the end, so that the command can be repeated."""

    def check(self, input: Path | None, output: Path | None) -> None:
        """Refuses an output that cannot be continued, or that overwrites an unfinished one, before a model is loaded.

        Args:
            input: File to read; None for standard input.
            output: File to write; None for standard output.
        """
        from vanilla_transformer.extras.resuming.resumable_file import record_path, refuse_unfinished

        if output is not None:
            refuse_same_file(input, record_path(output))
        is_resumable = can_be_read_again(input) and is_file(output)
        if self.resume and not is_resumable:
            raise UsageError("--resume needs an input file and an --output file to continue, not a pipe.")
        if output is not None and not is_resumable:
            refuse_unfinished(output)

    def answer(
        self,
        source: "LineSource",
        answering: "Answering",
        job: Callable[[], dict[str, Any]],
        begin: Callable[[], object],
    ) -> None:
        """Answers the lines of a file into a file so that this can be resumed, and other lines as they come.

        Args:
            answering: A function that answers them.
            job: Returns the settings that must be the same for an output to be resumed.
            begin: Called before the first line is answered.
        """
        if source.between_files:
            self._answer_file(source, answering, job(), begin)
        else:
            begin()
            source.answer(answering)

    def _answer_file(
        self, source: "LineSource", answering: "Answering", job: dict[str, Any], begin: Callable[[], object]
    ) -> None:
        from vanilla_transformer.extras.resuming.chunk_reader import ChunkReader, process_file
        from vanilla_transformer.extras.resuming.resumable_file import ResumableFile

        assert source.output is not None
        with ResumableFile(source.output, job, resume=self.resume) as file:
            reader = ChunkReader(source.lines, file.state.chunk_lines or answering.chunk_lines)
            reader.skip(file.state)
            if file.state.finished:
                print(f"{source.output} is finished: {file.state.lines:,} lines.", file=sys.stderr)
                return
            file.begin(reader.size)
            begin()
            with (
                _advice_where_it_ends(file),
                progress_bar(answering.progress, answering.unit, total=source.total, done=file.lines) as bar,
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
