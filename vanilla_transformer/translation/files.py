"""A file of lines to a file of translations: window by window, on one process or several, resumed after any end."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

from vanilla_transformer.translation.lines import LineTranslator, Translation, windows
from vanilla_transformer.translation.processes import OneProcess, SeveralProcesses
from vanilla_transformer.translation.resuming import Place, ResumableFile, ResumeError


@dataclass(frozen=True)
class Window:
    """Lines that are translated together; `digest` is the hash of the input up to their end.

    `first` counts the lines before them, and `whole` says whether more lines after them would not have joined them.
    """

    number: int
    first: int
    lines: list[str]
    digest: str
    whole: bool


class Source:
    """The windows of the input, in order; they end early where a line cannot be read, and `error` then says why."""

    def __init__(self, lines: Iterable[str], size: int) -> None:
        self.size = size
        self.read = 0
        self.error: Exception | None = None
        self._windows = self._numbered(lines)

    def __iter__(self) -> Iterator[Window]:
        return self._windows

    def _numbered(self, lines: Iterable[str]) -> Iterator[Window]:
        digest, first = hashlib.blake2b(digest_size=16), 0
        try:
            for gathered in windows(lines, self.size):
                for line in gathered:
                    digest.update(line.encode() + b"\n")
                number, self.read = self.read, self.read + 1
                yield Window(number, first, gathered, digest.hexdigest(), gathered.whole)
                first += len(gathered)
        except (OSError, ValueError) as error:
            self.error = error

    def skip(self, place: Place) -> None:
        """Passes over what is translated already.

        Raises:
            ResumeError: The lines are not those that were translated.
        """
        window = None
        while self.read < place.windows and (window := next(self._windows, None)) is not None:
            pass
        if self.error is not None:
            raise self.error
        same = not place.windows or (window is not None and window.digest == place.source)
        if place.finished and not (same and next(self._windows, None) is None):
            raise ResumeError(
                f"The output is finished, with {place.lines:,} lines, and was made from another input or a part of "
                "this: delete it and its .resume to begin anew."
            )
        if not same:
            raise ResumeError(
                f"The first {place.lines:,} lines of the input are not those that were translated: "
                "bring them back, or delete the output and its .resume to begin anew."
            )


def translate_windows(
    translator: LineTranslator,
    source: Source,
    output: ResumableFile | None,
    processes: OneProcess | SeveralProcesses,
    *,
    render: Callable[[int, Translation], str],
    progress: Callable[[int], object] = lambda lines: None,
    warn: Callable[[str], object] = lambda message: None,
) -> None:
    """Translates the windows that this process takes on; the main one also puts those of all into the output.

    Args:
        output: Where the translations of all go, in order; None in all processes but the main one.
        render: The lines to write for a line by its number, counted from 0.
        progress: Called after each batch with the number of lines that all processes have done.
        warn: Called in the main process, in order, with what a user should know.
    """
    collected = _Collected(output, processes, progress, warn) if output is not None else None
    number = processes.claim()
    for window in source:
        if window.number < number:
            continue
        while not processes.may_begin(number):
            if collected is not None:
                collected.take_ready()
            processes.wait()
        translations = translator.translate(window.lines, lambda count: progress(processes.count(count)))
        processes.hand_in(number, _Result.of(window, translations, render).to_json())
        if collected is not None:
            collected.take_ready()
        number = processes.claim()
    if collected is not None:
        collected.take_until(source.read)
    processes.leave(source.error)
    if source.error is not None and collected is not None:
        raise source.error
    if output is not None:
        output.finish()


@dataclass(frozen=True)
class _Result:
    """The translations of a window as they go to the main process."""

    text: str
    lines: int
    source: str
    whole: bool
    cut: list[int]

    @classmethod
    def of(
        cls, window: Window, translations: list[Translation], render: Callable[[int, Translation], str]
    ) -> "_Result":
        numbered = list(enumerate(translations, start=window.first))
        return cls(
            text="".join(f"{render(number, translation)}\n" for number, translation in numbered),
            lines=len(window.lines),
            source=window.digest,
            whole=window.whole,
            cut=[number + 1 for number, translation in numbered if translation.truncated],
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class _Collected:
    """The results of all processes, taken into the output in the order of the input."""

    def __init__(
        self,
        output: ResumableFile,
        processes: OneProcess | SeveralProcesses,
        progress: Callable[[int], object],
        warn: Callable[[str], object],
    ) -> None:
        self._output = output
        self._processes = processes
        self._progress = progress
        self._warn = warn
        self._next = output.place.windows

    def take_ready(self) -> None:
        """Takes those that are there and follow."""
        while (handed_in := self._processes.collect(self._next)) is not None:
            result = _Result(**json.loads(handed_in))
            self._output.take(result.text, lines=result.lines, source=result.source, whole=result.whole)
            for line in result.cut:
                self._warn(f"line {line} is too long for the model and was cut.")
            self._next += 1
            self._processes.taken(self._next)
        self._progress(self._processes.count(0))

    def take_until(self, end: int) -> None:
        """Takes all windows before `end`, waiting for what others have not handed in yet."""
        self.take_ready()
        while self._next < end:
            self._processes.wait()
            self.take_ready()
