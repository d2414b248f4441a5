"""Translations, or other answers, of a file of lines to a file: chunk by chunk, resumable after any end."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vanilla_transformer.extras.resuming.resumable_file import ResumableFile, ResumeError, ResumeState
from vanilla_transformer.translation.lines import CHUNK_CHARACTERS, chunks

if TYPE_CHECKING:
    from vanilla_transformer.cli.line_files import Answer


@dataclass(frozen=True)
class Chunk:
    """Lines that are translated together; `digest` is the hash of the input up to their end.

    `first` is the number of lines before them, and `whole` tells whether further lines would not have joined them.
    """

    first: int
    lines: list[str]
    digest: str
    whole: bool


class ChunkReader:
    """The chunks of the input, in order; they end early at a line that cannot be read, with the reason in `error`."""

    def __init__(self, lines: Iterable[str], size: int) -> None:
        self.size = size
        self.read = 0
        self.error: Exception | None = None
        self._chunks = self._numbered(lines)

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def _numbered(self, lines: Iterable[str]) -> Iterator[Chunk]:
        digest, first = hashlib.blake2b(digest_size=16), 0
        try:
            for gathered in chunks(lines, self.size):
                for line in gathered:
                    digest.update(line.encode() + b"\n")
                self.read += 1
                whole = len(gathered) == self.size or sum(map(len, gathered)) >= CHUNK_CHARACTERS
                yield Chunk(first, gathered, digest.hexdigest(), whole)
                first += len(gathered)
        except (OSError, ValueError) as error:
            self.error = error

    def skip(self, state: ResumeState) -> None:
        """Skips the lines that are already translated.

        Raises:
            ResumeError: The lines differ from those that were read before.
        """
        chunk = None
        while self.read < state.chunks and (chunk := next(self._chunks, None)) is not None:
            pass
        if self.error is not None:
            raise self.error
        same = not state.chunks or (chunk is not None and chunk.digest == state.source)
        if state.finished and not (same and next(self._chunks, None) is None):
            raise ResumeError(
                f"The output is finished, with {state.lines:,} lines, but was made from another input or a "
                "part of this one: delete it and its .resume to start over."
            )
        if not same:
            raise ResumeError(
                f"The first {state.lines:,} lines of the input have changed: restore them, or delete the "
                "output and its .resume to start over."
            )


def process_file(
    work: "Callable[[list[str], Callable[[int], object]], Sequence[Answer]]",
    reader: ChunkReader,
    output: ResumableFile,
    *,
    render: Callable[[int, Any], str],
    progress: Callable[[int], object] = lambda lines: None,
    warn: Callable[[str], object] = lambda message: None,
) -> None:
    """Answers the reader's remaining lines and writes them to the output.

    Args:
        work: Answers the lines of a chunk, in order, and reports progress.
        render: Returns the lines to write for a line, given its number from 0.
        progress: Called after each batch with the number of lines done since the last call.
        warn: Called, in order, with messages for the user.
    """
    for chunk in reader:
        numbered = list(enumerate(work(chunk.lines, progress), start=chunk.first))
        text = "".join(f"{render(number, answer)}\n" for number, answer in numbered)
        output.take(text, lines=len(chunk.lines), source=chunk.digest, whole=chunk.whole)
        for number, answer in numbered:
            if answer.truncated:
                warn(f"line {number + 1} is too long for the model and was cut.")
    if reader.error is not None:
        raise reader.error
    output.finish()
