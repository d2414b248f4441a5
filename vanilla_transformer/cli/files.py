"""Input and output of commands: files or standard streams, as a whole or answered line by line."""

import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

from vanilla_transformer.atomic_files import PARTIAL, atomic_replace
from vanilla_transformer.data.text_lines import DAMAGE, open_bytes, suffix_of
from vanilla_transformer.errors import SettingError
from vanilla_transformer.progress import is_terminal, progress_bar, show

if TYPE_CHECKING:
    from vanilla_transformer.tasks import Prediction
    from vanilla_transformer.translation import TranslationResult

Answer = TypeVar("Answer", "TranslationResult", "Prediction")
# Seconds without a new line after which the lines so far are answered, because somebody may be waiting.
PATIENCE = 0.05


def warn(message: str) -> None:
    """Prints a warning on standard error, without breaking a progress bar."""
    show(f"vanilla-transformer: warning: {message}")


def read_input(path: Path | None) -> Iterator[str]:
    """Yields the lines of a file, or of standard input if `path` is None; warns of a table's."""
    from vanilla_transformer.data.sources import table_suffix
    from vanilla_transformer.data.text_lines import is_markup, read_lines

    if path is not None and table_suffix(str(path)) is not None:
        warn(f"{path} is read as lines of text, not as a table: each line whole, a line of names too.")
    if path is None and is_terminal(sys.stdin):
        print("Type a line and press Enter; end with Ctrl-D.", file=sys.stderr)
    lines = read_lines("-" if path is None else path)
    if path is not None and is_markup(next(read_lines(path), "") if path.is_file() else ""):
        warn(f"{path} contains markup such as XML, which is read as lines of text.")
    return lines


def _regular_file(path: Path | None, stream: TextIO) -> tuple[int, int] | None:
    """Returns device and inode of a regular file, or of the one that a standard stream is; None for all else."""
    try:
        status = os.fstat(stream.fileno()) if path is None else path.stat()
    except (OSError, ValueError, AttributeError):  # There is no such file, or the stream has no file descriptor.
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _is_file(output: Path | None) -> bool:
    """Tells whether the output is or will be a regular file, rather than standard output, a pipe or a device."""
    return output is not None and (output.is_file() or not output.exists())


def check_output(output: Path | None, inputs: Iterable[Path | None] = (), models: Iterable[str] = ()) -> None:
    """Refuses an output before hours of work; an existing file stays as it is, and a model's files are inputs, too.

    None stands for standard input and standard output, which may be redirected to files.
    """
    target = _regular_file(output, sys.stdout)
    read = [*inputs, *(file for model in models for file in Path(model).glob("*"))]
    if target is not None and target in [_regular_file(path, sys.stdin) for path in read]:
        raise SettingError(f"{output or 'Standard output'} cannot be both input and output.")
    if output is not None and (_is_file(output) or output.is_dir()):
        existed = output.exists() or output.is_symlink()
        output.open("ab").close()
        if not existed:
            output.unlink()


def check_files(input: Path | None, output: Path | None, models: Sequence[str], *, resume: bool) -> None:
    """Refuses what cannot be read, written or continued before a model is loaded."""
    if input is not None and not input.is_fifo():
        input.open("rb").close()
    check_output(output, [input], models)
    if resume and not (output and _is_file(output) and not suffix_of(output) and _regular_file(input, sys.stdin)):
        raise SettingError("--resume continues from an input file to an --output file that is not compressed.")


def check_new_directory(output: Path) -> None:
    """Raises SettingError if the directory cannot be written, or holds more than a killed process left there."""
    if re.match(r"~|\w\w+:/", str(output)):  # A home folder that no shell has put in, or an address.
        raise SettingError(f"{output} is not a path of this machine: write it in full.")
    if output.is_file() or (output.is_dir() and not all(file.name.startswith(PARTIAL) for file in output.iterdir())):
        raise SettingError(f"{output} is not empty: name another directory.")
    there = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise SettingError(f"{output} cannot be written: {there} is a file or read-only.")


@contextmanager
def open_output(path: Path | None, mode: str = "wb") -> Iterator[TextIO]:
    """Opens a file, plain or compressed, or standard output, in UTF-8 whatever the locale.

    Output is line-buffered, except for compressed files.

    Args:
        mode: "ab" to write after what is in a plain file.
    """
    if path is None:
        yield sys.stdout
    else:
        plain = not suffix_of(path)
        with TextIOWrapper(open_bytes(path, mode), "utf-8", newline="\n", line_buffering=plain) as file:
            yield file


def write_whole(path: Path | None, lines: Iterable[str]) -> None:
    """Writes lines to a file, plain or compressed, that appears whole or not at all, or to standard output.

    A target that cannot be replaced is written directly: a pipe, a device, a file in a read-only directory.
    """
    place: AbstractContextManager[Path | None] = nullcontext(path)
    if path is not None and _is_file(path) and os.access(path.resolve().parent, os.W_OK):
        place = atomic_replace(path)
    with place as file, open_output(file) as output:
        output.writelines(f"{line}\n" for line in lines)


def answer_lines(
    input: Path | None,
    output: Path | None,
    work: Callable[[list[str], Callable[[int], object]], Sequence[Answer]],
    render: Callable[[int, Answer], str],
    *,
    chunk_lines: int,
    answer_lines: int = 1,
    rows: Iterator[str] | None = None,
    resume: bool = False,
) -> None:
    """Answers lines as they come, from a file or standard input (None) to a file or standard output (None).

    Args:
        work: Answers lines, in order, and reports how many are done.
        render: Returns the output for an answer, given the number of its line from 0.
        chunk_lines: Number of lines best answered together.
        answer_lines: Number of lines that `render` gives for each.
        rows: The rows of a table, as lines, instead of the lines of the input.
        resume: Whether to leave out lines whose answers are in the output.
    """
    from vanilla_transformer.translation.translator import chunks, with_pauses

    lines, rereadable = rows if rows is not None else read_input(input), _regular_file(input, sys.stdin) is not None
    waits = rows is None and not (rereadable and _is_file(output))
    number, left = 0, chunks(with_pauses(lines, PATIENCE) if waits else lines, chunk_lines)
    if resume and output is not None and output.exists():
        number, left = _unanswered(left, output, answer_lines)
    with ExitStack() as opened:
        file = opened.enter_context(open_output(output, "ab" if resume else "wb"))
        bar = None
        # Whoever types the lines, or reads their answers as they come, sees how far it is.
        if _regular_file(output, sys.stdout) and not (input is None and is_terminal(sys.stdin)):
            unit = "lines" if rows is None else "rows"
            total = count_lines(input) if input is not None and rereadable and rows is None else None
            bar = opened.enter_context(progress_bar(unit, total=total, done=number))
        for chunk in left:
            for answer in work(chunk, (lambda count: None) if bar is None else bar.update):
                print(render(number, answer), file=file)
                number += 1
                if answer.truncated:
                    warn(f"line {number} is too long for the model and was cut.")


def _unanswered(chunks: Iterator[list[str]], output: Path, answer_lines: int) -> tuple[int, Iterator[list[str]]]:
    """Returns the number of lines whose answers are in an output, and the chunks of the other lines.

    Answers of a chunk that was not finished are cut off: as a batch rounds, they may depend on the lines beside them.
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
            raise SettingError(f"{output} has more lines than the input gives: it was made from another one.")
    return number, iter(())


def count_lines(path: Path) -> int | None:
    """Counts the lines of a file; None if it cannot be read."""
    with suppress(OSError, *DAMAGE), open_bytes(path) as file:
        return sum(1 for _ in file)
    return None
