"""Commands that answer line by line: from a file or standard input, to a file or standard output."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from vanilla_transformer.cli.streams import (
    can_be_read_again,
    check_output,
    count_lines,
    is_file,
    open_output,
    read_input,
    warn,
)
from vanilla_transformer.compression import suffix_of
from vanilla_transformer.errors import RecipeError

# Seconds without a new line after which the lines so far are answered, because somebody may be waiting.
PATIENCE = 0.05


def check_files(input: Path | None, output: Path | None, models: Sequence[str], *, resume: bool) -> None:
    """Refuses what cannot be read, written or continued, and what must not be overwritten, before a model is loaded.

    Raises:
        RecipeError, OSError: Says which file, and why.
    """
    check_output(output, [input], models)
    rereadable = can_be_read_again(input)
    if input is not None and input.is_dir():
        raise RecipeError(f"{input} is a directory: give a file.")
    if resume and (output is None or not (rereadable and is_file(output))):
        raise RecipeError("--resume needs an input file and an --output file to continue, not a pipe.")
    if resume and output is not None and suffix_of(output):
        raise RecipeError(f"--resume continues plain text, and {output} is compressed.")


def answer_lines(
    input: Path | None,
    output: Path | None,
    work: Callable[[list[str], Callable[[int], object]], Sequence[Any]],
    render: Callable[[int, Any], str],
    *,
    chunk_lines: int,
    answer_lines: int = 1,
    rows: Iterator[str] | None = None,
    resume: bool = False,
) -> None:
    """Answers lines as they come.

    Args:
        input: File to read; None for standard input.
        output: File to write; None for standard output.
        work: Answers lines, in order, and reports how many are done; an answer says whether its line was `truncated`.
        render: Returns the output for an answer, given the number of its line from 0.
        chunk_lines: Number of lines best answered together.
        answer_lines: Number of lines that `render` gives for each.
        rows: The rows of a table, as lines, instead of the lines of the input.
        resume: Whether to leave out lines whose answers are in the output.
    """
    from vanilla_transformer.progress import progress_bar
    from vanilla_transformer.translation.lines import chunks, with_pauses

    lines = rows if rows is not None else read_input(input)
    rereadable = can_be_read_again(input)
    waits = rows is None and not (rereadable and is_file(output))
    number, left = 0, chunks(with_pauses(lines, PATIENCE) if waits else lines, chunk_lines)
    if resume and output is not None and output.exists():
        number, left = unanswered(left, output, answer_lines)
    total = partial(count_lines, input) if input is not None and rereadable and rows is None else None
    with open_output(output, "ab" if resume else "wb") as file:
        in_the_way = file.isatty() or (input is None and sys.stdin.isatty())
        unit = "lines" if rows is None else "rows"
        with progress_bar(unit, total=total, done=number, in_the_way=in_the_way) as bar:
            for chunk in left:
                for answer in work(chunk, bar.update):
                    print(render(number, answer), file=file)
                    number += 1
                    if answer.truncated:
                        warn(f"line {number} is too long for the model and was cut.")


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
