"""Shared parts of commands that answer line by line."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

from vanilla_transformer.cli.streams import (
    answer_promptly,
    can_be_read_again,
    check_output,
    check_standard_input,
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
from vanilla_transformer.compression import suffix_of
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.progress import progress_bar


class Answer(Protocol):
    """The result for one line."""

    @property
    def truncated(self) -> bool:
        """Tells whether the line had to be cut."""


@dataclass(frozen=True)
class Answering:
    """A function that answers lines, and the form of its answers.

    Attributes:
        work: Answers lines, in order, and reports how many are done.
        chunk_lines: Number of lines best answered together.
        render: Returns the output for a line, given its number from 0.
        unit: Name of the lines in it.
        answer_lines: Number of lines that `render` gives for each.
    """

    work: Callable[[list[str], Callable[[int], object]], Sequence[Answer]]
    chunk_lines: int
    render: Callable[[int, Any], str]
    unit: str = "lines"
    answer_lines: int = 1


def check_paths(model: str, input: Path | None, output: Path | None) -> None:
    """Refuses unreadable input, unwritable output and overwriting needed files, before a model is loaded."""
    refuse_directories(input, output)
    check_standard_input(input)
    refuse_same_file(input, output)
    refuse_model_file(model, output)
    if output is None:
        check_standard_output()
    check_output(output)


def check_resume(input: Path | None, output: Path | None) -> None:
    """Raises RecipeError if an output cannot be continued, before a model is loaded."""
    if output is None or not (can_be_read_again(input) and is_file(output)):
        raise RecipeError("--resume needs an input file and an --output file to continue, not a pipe.")
    if suffix_of(output):
        raise RecipeError(f"--resume continues plain text, and {output} is compressed.")


def unanswered(chunks: Iterator[list[str]], output: Path, answer_lines: int) -> tuple[int, Iterator[list[str]]]:
    """Returns the number of lines whose answers are in an output, and the chunks of the other lines.

    Answers of a chunk that was not finished are cut off: as a batch rounds, they may depend on the lines beside them.

    Raises:
        RecipeError: The output has more lines than the input has answers.
    """
    number = 0
    with output.open("rb+") as file:
        for chunk in chunks:
            start, wanted = file.tell(), len(chunk) * answer_lines
            there = list(islice(file, wanted))
            if len(there) < wanted or not there[-1].endswith(b"\n"):
                file.truncate(start)
                return number, chain([chunk], chunks)
            number += len(chunk)
        if file.read(1):
            raise RecipeError(f"{output} has more lines than the input gives: it was made from another one.")
    return number, iter(())


class LineSource:
    """The lines of a file or of standard input, to be answered into an output.

    Args:
        input: File to read; None for standard input.
        output: File to write; None for standard output.
        rows: The rows of a table, as lines, instead of the lines of the input.
    """

    def __init__(self, input: Path | None, output: Path | None, rows: Iterator[str] | None = None) -> None:
        rereadable = can_be_read_again(input)
        self.output = output
        self.typed = is_typed(input)
        self.total = partial(count_lines, input) if rereadable and rows is None else None
        self.lines: Iterable[Any] = read_input(input) if rows is None else rows
        if rows is None and not (rereadable and is_file(output)):
            self.lines = answer_promptly(self.lines, input)

    def answer(self, answering: Answering, *, resume: bool = False) -> None:
        """Answers lines as they come; with `resume`, those whose answers are not yet in the output."""
        from vanilla_transformer.translation.lines import chunks

        number, left = 0, chunks(self.lines, answering.chunk_lines)
        if resume and self.output is not None and self.output.exists():
            number, left = unanswered(left, self.output, answering.answer_lines)
        with (
            open_output(self.output, "ab" if resume else "wb") as file,
            progress_bar(
                answering.unit,
                total=self.total,
                done=number,
                in_the_way=self.typed or file.isatty(),
            ) as bar,
        ):
            for chunk in left:
                for answer in answering.work(chunk, bar.update):
                    print(answering.render(number, answer), file=file)
                    number += 1
                    if answer.truncated:
                        warn(f"line {number} is too long for the model and was cut.")
