"""Lines of text as they arrive, in chunks, and their translations."""

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vanilla_transformer.errors import check_number, refuse_one_text

# Limit on a chunk of any number of lines: splitting text into sub-words takes a hundred times its size.
CHUNK_CHARACTERS = 1 << 20
# With larger exponents the scores of long translations become NaN, or all the same.
MAX_LENGTH_PENALTY = 10
# More than fit into any memory.
MAX_BEAMS, MAX_LENGTH = 10_000, 1_000_000
# After a line of this length the reader waits until all lines so far are taken, so that long ones do not gather.
_LONG_LINE = 1 << 16


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a line.

    Attributes:
        text: The text, without line breaks.
        score: Its score; None if the search gives none.
        tokens: The number of its tokens, `</s>` included.
        ids: Its token ids.
        alignment: Its links with the source; None if not requested.
    """

    text: str
    score: float | None
    tokens: int
    ids: tuple[int, ...] = ()
    alignment: str | None = None


@dataclass(frozen=True)
class Translation:
    """The result for one line.

    Attributes:
        hypotheses: Its translations, best first.
        truncated: Whether the line had to be cut to be translated.
        source_ids: The tokens that were translated; none for an empty line.
    """

    hypotheses: tuple[Hypothesis, ...]
    truncated: bool = False
    source_ids: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The best hypothesis, without line breaks."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float | None:
        """Beam search's score of the best hypothesis: its log-probability divided by the length penalty."""
        return self.hypotheses[0].score


# For a line of white space.
NO_TRANSLATION = (Hypothesis("", 0.0, 0),)


def check_lines(lines: Sequence[object]) -> None:
    """Refuses a single text instead of lines, and lines that are not text.

    Raises:
        ValueError: The message names the line.
    """
    refuse_one_text("lines", lines)
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, str):
            raise ValueError(f"Line {number:,} is {line!r}, which is not text.")


def check_search(
    *,
    batch_tokens: int | None = None,
    max_source_length: int | None = None,
    num_beams: int | None = None,
    num_return_sequences: int | None = None,
    length_penalty: float | None = None,
    max_length_beyond_source: int | None = None,
    **others: object,
) -> None:
    """Refuses invalid settings of `translate_lines`; `others` are left to `generate`.

    Raises:
        RecipeError: Names the setting and its limits.
    """
    check_number("batch_tokens", batch_tokens, 1)
    check_number("max_source_length", max_source_length, 1)
    check_number("num_beams", num_beams, 1, MAX_BEAMS)
    check_number("num_return_sequences", num_return_sequences, 1)
    check_number("length_penalty", length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY, whole=False)
    check_number("max_length_beyond_source", max_length_beyond_source, 0, MAX_LENGTH)


def with_pauses(lines: Iterable[str], patience: float) -> Iterator[str | None]:
    """Yields the lines as they arrive, and a None whenever the next has not come within `patience` seconds.

    So a person or a program that waits for an answer before sending the next line gets it, while a fast stream still
    fills whole chunks.
    """
    arrived: queue.Queue[str | Exception | None] = queue.Queue(maxsize=1024)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
                if len(line) > _LONG_LINE:
                    arrived.join()
            arrived.put(None)
        except Exception as error:
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = arrived.get(timeout=patience)
        except queue.Empty:
            yield None
            line = arrived.get()
        arrived.task_done()
        if line is None:
            return
        if isinstance(line, Exception):
            raise line
        yield line


def chunks(lines: Iterable[str | None], size: int) -> Iterator[list[str]]:
    """Gathers `size` lines, or as many as have `CHUNK_CHARACTERS`.

    A chunk is smaller before a pause, at the end, and before a line that could not be read.
    """
    chunk: list[str] = []
    characters = 0
    try:
        for line in lines:
            if line is not None:
                if not isinstance(line, str):
                    raise ValueError(f"{line!r} among the lines is not text.")
                chunk.append(line)
                characters += len(line)
            if chunk and (line is None or len(chunk) == size or characters >= CHUNK_CHARACTERS):
                yield chunk
                chunk, characters = [], 0
    except (OSError, ValueError):
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def one_line(text: str) -> str:
    """Returns the text with a space for each line break that any reader of lines may see in it."""
    return " ".join(text.splitlines())
