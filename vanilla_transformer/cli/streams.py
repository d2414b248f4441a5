"""Standard input and standard output, or files in their place, and warnings on standard error."""

import contextlib
import gzip
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader, FileIO, TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from vanilla_transformer.cli.arguments import UsageError

# Seconds without a new line after which those that came are translated, for whoever waits for an answer.
PATIENCE = 0.05


def read_input(path: Path | None) -> Iterator[str]:
    """The lines of a file, or of standard input where there is none."""
    from vanilla_transformer.data.lines import read_lines

    if path is None and sys.stdin.isatty():
        print("Type a line and press Enter; end with Ctrl-D.", file=sys.stderr)
    return read_lines("-" if path is None else path)


def answer_promptly(lines: Iterator[str], path: Path | None) -> Iterable[str | None]:
    """The lines, with pauses marked where they come from a terminal or another program rather than from a file."""
    from vanilla_transformer.translation import with_pauses

    if can_be_read_again(path):
        return lines
    if path is None:
        # Python closes sys.stdin when it ends, and aborts if a thread still waits for a line in its buffer.
        sys.stdin = cast(TextIO, _BinaryInput(BufferedReader(FileIO(sys.stdin.fileno(), closefd=False))))
    return with_pauses(lines, PATIENCE)


@dataclass(frozen=True)
class _BinaryInput:
    """Standard input without what makes text of it; nothing happens when it is thrown away."""

    buffer: BinaryIO

    def isatty(self) -> bool:
        """Whether somebody types."""
        return self.buffer.isatty()


def refuse_same_file(input: Path | None, output: Path | None) -> None:
    """Raises UsageError where the output would wipe out the input."""
    if input is not None and output is not None and input.exists() and output.exists() and output.samefile(input):
        raise UsageError(f"{output} cannot be both input and output.")


def check_output(path: Path | None) -> None:
    """Raises OSError where no file can be written, before hours go into what it shall hold. What is there stays."""
    if path is not None and is_file(path):
        existed = path.exists() or path.is_symlink()
        path.open("ab").close()
        if not existed:
            path.unlink()


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """A file, plain or .gz, or standard output, in UTF-8 whatever the locale.

    Each line is handed on as soon as it is written, but for a .gz file.
    """
    if path is None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n", line_buffering=True)
        yield sys.stdout
    elif path.suffix == ".gz":
        with gzip.open(path, "wt", encoding="utf-8", newline="\n") as file:
            yield cast(TextIO, file)
    else:
        with open(path, "w", encoding="utf-8", newline="\n", buffering=1) as file:
            yield file


def can_be_read_again(path: Path | None) -> bool:
    """Whether the input, standard input where there is no path, is a file rather than a terminal or a pipe."""
    return stat.S_ISREG(os.stat(sys.stdin.fileno() if path is None else path).st_mode)


def is_file(path: Path | None) -> bool:
    """Whether the output is a file or shall be one, rather than standard output, a pipe or a device."""
    return path is not None and (path.is_file() or not path.exists())


def warn(message: str) -> None:
    """Tells on standard error what did not stop the command, without breaking into a progress bar."""
    from tqdm import tqdm

    tqdm.write(f"vanilla-transformer: warning: {message}", file=sys.stderr)
