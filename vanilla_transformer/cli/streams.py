"""Input and output, as files or standard streams, and warnings on standard error."""

import contextlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader, FileIO, TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from vanilla_transformer.atomic_files import atomic_replace
from vanilla_transformer.compression import DAMAGE, open_bytes, suffix_of
from vanilla_transformer.errors import RecipeError

_CHUNK = 1 << 20
# Seconds without a new line after which the lines so far are translated, because somebody may be waiting.
PATIENCE = 0.05
# Files of a model directory; translations may be written into it under other names.
_MODEL_SUFFIXES = {".bin", ".jinja", ".json", ".md", ".model", ".png", ".py", ".safetensors", ".spm", ".yaml"}
_MODEL_NAMES = {"merges.txt", "metrics.jsonl", "train.log", "vocab.txt"}


def read_input(path: Path | None) -> Iterator[str]:
    """Yields the lines of a file, or of standard input if `path` is None."""
    from vanilla_transformer.data.text_lines import read_lines

    check_standard_input(path)
    if is_typed(path):
        print("Type a line and press Enter; end with Ctrl-D.", file=sys.stderr)
    return read_lines("-" if path is None else path)


def check_standard_input(path: Path | None) -> None:
    """Raises RecipeError if standard input is to be read, because `path` is None, but is closed."""
    if path is None and sys.stdin is None:
        raise RecipeError("Standard input is closed: name a file to read, or send lines through a pipe.")


def is_typed(path: Path | None) -> bool:
    """Tells whether somebody types the input: standard input, where `path` is None, is a terminal."""
    return path is None and sys.stdin is not None and sys.stdin.isatty()


def answer_promptly(lines: Iterator[str], path: Path | None) -> Iterable[str | None]:
    """Returns the lines, with pauses marked if they come from a terminal or a pipe rather than from a file."""
    from vanilla_transformer.translation import with_pauses

    if can_be_read_again(path):
        return lines
    if path is None:
        # Python closes sys.stdin at exit, and aborts if a thread is still waiting for a line in its buffer.
        sys.stdin = cast(TextIO, _BinaryInput(BufferedReader(FileIO(sys.stdin.fileno(), closefd=False))))
    return with_pauses(lines, PATIENCE)


@dataclass(frozen=True)
class _BinaryInput:
    """Standard input without its text layer; nothing happens when it is garbage-collected."""

    buffer: BinaryIO

    def isatty(self) -> bool:
        """Tells whether standard input is a terminal."""
        return self.buffer.isatty()


def refuse_directories(*paths: Path | None) -> None:
    """Raises RecipeError for a directory given as a file."""
    for path in paths:
        if path is not None and path.is_dir():
            raise RecipeError(f"{path} is a directory: give a file.")


def refuse_same_file(input: Path | None, output: Path | None) -> None:
    """Raises RecipeError if input and output are the same file.

    None stands for standard input and standard output, which may be redirected to files.
    """
    file = _regular_file(input, sys.stdin)
    if file is not None and file == _regular_file(output, sys.stdout):
        raise RecipeError(f"{output or 'Standard output'} cannot be both input and output.")


def _regular_file(path: Path | None, stream: Any) -> tuple[int, int] | None:
    """Returns device and inode of a file; None for terminals, pipes and missing files."""
    try:
        status = os.fstat(stream.fileno()) if path is None else path.stat()
    except (OSError, ValueError, AttributeError):  # Closed, or without a file descriptor.
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def refuse_model_file(model: str, output: Path | None) -> None:
    """Raises RecipeError if the output would overwrite a file of the model, or be mistaken for one."""
    directory = Path(model)
    if output is None or not directory.is_dir():
        return
    needed = (file for file in directory.iterdir() if _belongs_to_a_model(file))
    file = _regular_file(output, None)
    # Files of a model may be links into a cache.
    would_be = _belongs_to_a_model(output) and directory.resolve() in output.resolve().parents
    if would_be or (file is not None and any(file == _regular_file(other, None) for other in needed)):
        raise RecipeError(f"{output} is, or is named like, a file of the model {model}: choose another output file.")


def _belongs_to_a_model(path: Path) -> bool:
    return path.suffix in _MODEL_SUFFIXES or path.name in _MODEL_NAMES


def check_output(path: Path | None) -> None:
    """Raises OSError if the file cannot be written, before hours of work. An existing file is left unchanged."""
    refuse_directories(path)
    if path is not None and is_file(path):
        existed = path.exists() or path.is_symlink()
        try:
            path.open("ab").close()
        except OSError as error:
            raise unwritable(path, error) from error
        if not existed:
            path.unlink()


def unwritable(path: Path, error: OSError) -> OSError:
    """Explains why a file cannot be written, in a sentence with its name."""
    if path.is_symlink() and not path.exists():
        return OSError(f"{path} is a link to {os.readlink(path)}, which cannot be created: {error.strerror or error}.")
    if not path.parent.is_dir():
        return OSError(f"There is no directory {path.parent} to write {path.name} to.")
    return OSError(f"{path} cannot be written: {error.strerror or error}.")


def check_new_file(path: Path | None, option: str) -> None:
    """Raises RecipeError if the file already exists, and OSError if it cannot be written."""
    refuse_directories(path)
    if path is not None and path.is_file():
        raise RecipeError(f"{path} exists: delete it, or name another file with {option}.")
    check_output(path)


@contextlib.contextmanager
def named_in_errors(name: str | Path) -> Iterator[None]:
    """Adds the file name to an OSError without one, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(name)) from error


@contextlib.contextmanager
def open_output(path: Path | None, mode: str = "wb") -> Iterator[TextIO]:
    """Opens a file, plain or compressed, or standard output, in UTF-8 whatever the locale.

    Output is line-buffered, except for compressed files.

    Args:
        mode: "ab" to write after what is in a plain file.
    """
    if path is None:
        check_standard_output()
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n", line_buffering=True)
    with named_in_errors(path or "Standard output"):
        if path is None:
            yield sys.stdout
        else:
            plain = not suffix_of(path)
            with TextIOWrapper(open_bytes(path, mode), "utf-8", newline="\n", line_buffering=plain) as file:
                yield file


def print_result(text: str) -> None:
    """Prints to standard output, and names it in an error."""
    with open_output(None) as output:
        print(text, file=output)


def write_whole(path: Path | None, lines: Iterable[str]) -> None:
    """Writes lines to a file, plain or compressed, that appears whole or not at all, or to standard output.

    A target that cannot be replaced is written directly: a pipe, a device, a file in a read-only directory.
    """
    replaceable = path is not None and is_file(path) and os.access(path.resolve().parent, os.W_OK)
    place: contextlib.AbstractContextManager[Path | None] = contextlib.nullcontext(path)
    if path is not None and replaceable:
        place = atomic_replace(path)
    with place as file, open_output(file) as output:
        output.writelines(f"{line}\n" for line in lines)


def check_standard_output() -> None:
    """Raises RecipeError if standard output is closed."""
    if sys.stdout is None:
        raise RecipeError("Standard output is closed: leave it open, or write to a file with --output.")


def occupy_closed_streams() -> None:
    """Opens the null device in place of standard streams that a shell has closed (`<&-`).

    Otherwise the next files opened would get their numbers, and output of libraries would go into them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  open until the process ends


def can_be_read_again(path: Path | None) -> bool:
    """Tells whether the input (standard input if `path` is None) is a regular file, not a terminal or a pipe."""
    return stat.S_ISREG(os.stat(sys.stdin.fileno() if path is None else path).st_mode)


def is_file(path: Path | None) -> bool:
    """Tells whether the output is or will be a regular file, rather than standard output, a pipe or a device."""
    return path is not None and (path.is_file() or not path.exists())


def warn(message: str) -> None:
    """Prints a warning on standard error, without breaking a progress bar."""
    from tqdm import tqdm

    tqdm.write(f"vanilla-transformer: warning: {message}", file=sys.stderr)


def count_lines(path: Path | None) -> int | None:
    """Counts the lines in a file, or redirected to standard input; None if they cannot be counted."""
    lines, last = 0, b"\n"
    with contextlib.suppress(OSError, *DAMAGE):
        for chunk in _chunks(path):
            lines += chunk.count(b"\n")
            last = chunk
        return lines + (not last.endswith(b"\n"))
    return None


def _chunks(path: Path | None) -> Iterator[bytes]:
    if path is None:
        place = os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR)
        # pread leaves the position of other readers unchanged.
        while chunk := os.pread(sys.stdin.fileno(), _CHUNK, place):
            place += len(chunk)
            yield chunk
        return
    with open_bytes(path) as file:
        while chunk := file.read(_CHUNK):
            yield chunk
