"""Input and output, as files or standard streams, and warnings on standard error."""

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import TextIOWrapper, UnsupportedOperation
from pathlib import Path
from typing import TextIO

from vanilla_transformer.atomic_files import atomic_replace
from vanilla_transformer.compression import DAMAGE, open_bytes, suffix_of
from vanilla_transformer.errors import RecipeError

# Files of a model directory; translations may be written into it under other names.
_OF_A_MODEL = re.compile(
    r".*\.(bin|jinja|json|md|model|png|py|safetensors|spm|yaml)|(merges|vocab)\.txt|metrics\.jsonl|train\.log"
)


def read_input(path: Path | None) -> Iterator[str]:
    """Yields the lines of a file, or of standard input if `path` is None."""
    from vanilla_transformer.data.text_lines import read_lines

    if path is None and sys.stdin.isatty():
        print("Type a line and press Enter; end with Ctrl-D.", file=sys.stderr)
    return read_lines("-" if path is None else path)


def can_be_read_again(path: Path | None) -> bool:
    """Tells whether the input (standard input if `path` is None) is a regular file, not a terminal or a pipe."""
    return stat.S_ISREG(os.stat(sys.stdin.fileno() if path is None else path).st_mode)


def is_file(path: Path | None) -> bool:
    """Tells whether the output is or will be a regular file, rather than standard output, a pipe or a device."""
    return path is not None and (path.is_file() or not path.exists())


def check_output(output: Path | None, inputs: Iterable[Path | None] = (), models: Iterable[str] = ()) -> None:
    """Refuses an output before hours of work; an existing file stays as it is.

    None stands for standard input and standard output, which may be redirected to files.

    Raises:
        RecipeError: Standard output is closed, or the output is an input, or a file of a model or named like one.
        OSError: The file cannot be written.
    """
    target = _regular_file(output, sys.stdout)
    if target is not None and target in [_regular_file(path, sys.stdin) for path in inputs]:
        raise RecipeError(f"{output or 'Standard output'} cannot be both input and output.")
    if output is None:
        if not sys.stdout.writable():
            raise RecipeError("Standard output is closed: leave it open, or write to a file with --output.")
        return
    for model in map(Path, models):
        inside = _OF_A_MODEL.fullmatch(output.name) and model.resolve() in output.resolve().parents
        # Files of a model may be links into a cache.
        needed = (file for file in (model.iterdir() if model.is_dir() else ()) if _OF_A_MODEL.fullmatch(file.name))
        if (inside and model.is_dir()) or (target and any(target == _regular_file(file) for file in needed)):
            raise RecipeError(f"{output} is, or is named like, a file of the model {model}: choose another output.")
    if is_file(output) or output.is_dir():
        existed = output.exists() or output.is_symlink()
        output.open("ab").close()
        if not existed:
            output.unlink()


def _regular_file(path: Path | None, stream: TextIO | None = None) -> tuple[int, int] | None:
    """Returns device and inode of a file, or of a stream without a path; None for terminals and pipes."""
    try:
        status = path.stat() if path is not None else os.fstat(stream.fileno()) if stream is not None else None
    except (OSError, ValueError):  # There is no such file, or the stream has no file descriptor.
        return None
    return (status.st_dev, status.st_ino) if status is not None and stat.S_ISREG(status.st_mode) else None


def check_new_file(path: Path | None, option: str) -> None:
    """Raises RecipeError if the file already exists, and OSError if it cannot be written."""
    if path is not None and path.is_file():
        raise RecipeError(f"{path} exists: delete it, or name another file with {option}.")
    check_output(path)


@contextmanager
def named_in_errors(name: str | Path) -> Iterator[None]:
    """Adds the file name to an OSError without one, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or (error.errno is None and not isinstance(error, UnsupportedOperation)):
            raise
        raise OSError(error.errno, error.strerror or str(error), str(name)) from error


@contextmanager
def open_output(path: Path | None, mode: str = "wb") -> Iterator[TextIO]:
    """Opens a file, plain or compressed, or standard output, in UTF-8 whatever the locale.

    Output is line-buffered, except for compressed files.

    Args:
        mode: "ab" to write after what is in a plain file.
    """
    with named_in_errors(path or "Standard output"):
        if path is None:
            if isinstance(sys.stdout, TextIOWrapper):
                sys.stdout.reconfigure(encoding="utf-8", newline="\n", line_buffering=True)
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
    if path is not None and is_file(path) and os.access(path.resolve().parent, os.W_OK):
        place = atomic_replace(path)
    with place as file, open_output(file) as output:
        output.writelines(f"{line}\n" for line in lines)


def occupy_closed_streams() -> None:
    """Opens the null device in place of standard streams that a shell has closed (`<&-`).

    Otherwise the next files opened would get their numbers, and output of libraries would go into them. Nothing can be
    written to a standard output that was closed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  open until the process ends


def warn(message: str) -> None:
    """Prints a warning on standard error, without breaking a progress bar."""
    from tqdm import tqdm

    tqdm.write(f"vanilla-transformer: warning: {message}", file=sys.stderr)


def count_lines(path: Path) -> int | None:
    """Counts the lines of a file; None if it cannot be read."""
    with suppress(OSError, *DAMAGE), open_bytes(path) as file:
        return sum(1 for _ in file)
    return None
