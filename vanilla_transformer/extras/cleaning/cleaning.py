"""Filters for lines that a model should not learn from: reported, and left out of a copy."""

import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ftfy
import regex
from rapidfuzz.distance import Levenshtein

from vanilla_transformer.atomic_files import atomic_write
from vanilla_transformer.compression import open_bytes, suffix_of
from vanilla_transformer.data.text_lines import BYTE_ORDER_MARK, CorpusError, byte_lines
from vanilla_transformer.extras.cleaning.duplicates import Duplicates
from vanilla_transformer.limits import check_number, check_whole

# In the order in which they run: a line counts for the first filter that removes it.
FILTERS = {
    "encoding": "bytes that are not UTF-8, or characters that replaced them",
    "empty": "nothing but white space",
    "mojibake": "text decoded with the wrong encoding",
    "length": "too few or too many words or characters",
    "ratio": "one side much longer than the other",
    "script": "letters of another script",
    "copy": "both sides the same, or nearly",
    "duplicate": "there already",
}
_NEEDS_PAIRS = ("ratio", "copy")
# Replacement characters of unreadable bytes, and control characters except the tab.
_UNREADABLE = regex.compile(r"[\uFFFD\x00-\x08\x0B-\x1F\x7F]")
_SCRIPTS = (
    *("Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Han", "Hiragana", "Katakana", "Hangul", "Devanagari"),
    *("Bengali", "Tamil", "Telugu", "Kannada", "Malayalam", "Gujarati", "Gurmukhi", "Sinhala", "Thai", "Lao"),
    *("Khmer", "Myanmar", "Georgian", "Armenian", "Ethiopic", "Tibetan", "Mongolian"),
)
# A file's scripts are those with more than this share of the letters in this many of its first lines.
_LINES_LOOKED_AT, _SHARE_OF_A_SCRIPT = 10_000, 0.1
# Names and numbers are so short that their lengths may have any ratio.
_SHORTEST_FOR_RATIO = 20
# Lines between two progress reports.
_LINES_TOGETHER = 1 << 12


@dataclass(frozen=True)
class Filters:
    """Conditions that a line must meet.

    Attributes:
        min_words: Minimum number of words of a side, separated by white space.
        max_words: Maximum number of words of a side.
        max_characters: Maximum number of characters of a side.
        max_ratio: Maximum ratio of the sides' characters; sides of a few words may differ by more.
        scripts: For each file the expected scripts of its letters, joined by +; by default those of its beginning.
        min_script_share: Minimum share of the letters that are in these scripts.
        max_similarity: Similarity from which both sides count as copies; 1 if they are equal.
        skip: Filters to leave out.
        examples: Number of removed lines per filter whose text the report holds.

    Raises:
        SettingError: A value makes no sense.
    """

    min_words: int = 1
    max_words: int = 200
    max_characters: int = 2000
    max_ratio: float = 3.0
    scripts: tuple[str, ...] | None = None
    min_script_share: float = 0.5
    max_similarity: float = 0.9
    skip: tuple[str, ...] = ()
    examples: int = 3

    def __post_init__(self) -> None:
        check_whole("max_words", self.max_words, 1)
        check_whole("min_words", self.min_words, 0, self.max_words)
        check_whole("max_characters", self.max_characters, 1)
        check_whole("examples", self.examples, 0)
        check_number("max_ratio", self.max_ratio, 1)
        check_number("min_script_share", self.min_script_share, 0, 1)
        check_number("max_similarity", self.max_similarity, 0, 1)


@dataclass
class Taken:
    """Lines that a filter removed: their count, and some of them with number and text in each file."""

    count: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class CleaningReport:
    """Counts of the lines kept and of those that each filter removed.

    Attributes:
        scripts: The expected scripts of each file, if the script filter ran.
        taken: The removed lines, by the name of each filter that ran.
    """

    read: int
    kept: int
    scripts: list[str]
    taken: dict[str, Taken]

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.kept:,} of {self.read:,} lines kept."]
        if self.scripts:
            lines.append(f"Letters expected in: {', '.join(self.scripts)}.")
        width = max(map(len, self.taken), default=0)
        for name, taken in self.taken.items():
            lines.append(f"{name:{width}}  {taken.count:>10,}  {FILTERS[name]}")
            lines += [f"    line {one['line']:,}: {' ||| '.join(one['text'])}" for one in taken.examples]
        return "\n".join(lines)


def clean_files(
    inputs: Sequence[str | os.PathLike[str]],
    outputs: Sequence[Path],
    filters: Filters,
    progress: Callable[[int], object] = lambda lines: None,
) -> CleaningReport:
    """Copies the lines that pass the filters, from one file or from files that are aligned line by line.

    Reads the files twice, with one byte of memory for each line; hashes for finding duplicates lie in temporary
    files. The outputs appear complete, and together.

    Args:
        inputs: One file or two, plain or compressed, which are not changed.
        outputs: As many files, which do not exist.
        filters: The filters to apply.
        progress: Called with the number of lines read since the last call; each line counts twice.

    Raises:
        CorpusError: The files differ in their number of lines, or a filter or script has an unknown name.
    """
    names = [str(path) for path in inputs]
    active = _active(filters, len(names))
    scripts = _scripts(names, filters) if "script" in active else []
    judge = _Judge(filters, active, scripts)
    taken = {name: Taken() for name in active}
    draw = random.Random(0)
    numbers = {name: number for number, name in enumerate(FILTERS, start=1)}
    verdicts = bytearray()
    with Duplicates() as duplicates:
        for number, line in enumerate(_aligned(names)):
            reason, texts = judge.reason(line)
            verdicts.append(numbers[reason] if reason else 0)
            if reason:
                _note(taken[reason], number, texts, filters.examples, draw)
            elif "duplicate" in active:
                duplicates.add(number, texts)
            if number % _LINES_TOGETHER == _LINES_TOGETHER - 1:
                progress(_LINES_TOGETHER)
        for number in duplicates.positions():
            verdicts[number] = numbers["duplicate"]
    kept = 0
    with ExitStack() as stack:
        files = [stack.enter_context(_output(path)) for path in outputs]
        for number, line in enumerate(_aligned(names)):
            if not verdicts[number]:
                kept += 1
                for file, text in zip(files, line, strict=True):
                    file.write(text + b"\n")
            elif verdicts[number] == numbers["duplicate"]:
                _note(taken["duplicate"], number, [text.decode() for text in line], filters.examples, draw)
            if number % _LINES_TOGETHER == _LINES_TOGETHER - 1:
                progress(_LINES_TOGETHER)
    return CleaningReport(len(verdicts), kept, scripts, taken)


def _active(filters: Filters, files: int) -> list[str]:
    """Returns the filters that are asked for and apply to this number of files."""
    for name in filters.skip:
        if name not in FILTERS:
            raise CorpusError(f"there is no filter {name}; there are {', '.join(FILTERS)}")
        if name in ("encoding", "empty"):
            raise CorpusError(f"the filter {name} cannot be left out: training data cannot contain such lines")
    absent = {*filters.skip, *(_NEEDS_PAIRS if files == 1 else ())}
    return [name for name in FILTERS if name not in absent]


class _Judge:
    """Finds the filter that removes a line."""

    def __init__(self, filters: Filters, active: Sequence[str], scripts: Sequence[str]) -> None:
        self._filters, self._active = filters, [name for name in active if name not in ("encoding", "duplicate")]
        self._takes: dict[str, Callable[[list[str]], bool]] = {
            "empty": lambda texts: not all(text.strip() for text in texts),
            "mojibake": lambda texts: any(not text.isascii() and ftfy.fix_encoding(text) != text for text in texts),
            "length": self._has_bad_length,
            "ratio": self._has_bad_ratio,
            "script": self._has_other_letters,
            "copy": self._is_copy,
        }
        self._letters = [_letters_in(names) for names in scripts]
        self._has_latin = ["Latin" in names.split("+") for names in scripts]

    def reason(self, line: Sequence[bytes]) -> tuple[str | None, list[str]]:
        """Returns the name of the first filter that removes a line, or None, and the line's text."""
        try:
            texts = [text.decode("utf-8") for text in line]
        except UnicodeDecodeError:
            return "encoding", [text.decode("utf-8", errors="backslashreplace") for text in line]
        if any(_UNREADABLE.search(text) for text in texts):
            return "encoding", texts
        return next((name for name in self._active if self._takes[name](texts)), None), texts

    def _has_bad_length(self, texts: list[str]) -> bool:
        least, most, characters = self._filters.min_words, self._filters.max_words, self._filters.max_characters
        return any(len(text) > characters or not least <= len(text.split()) <= most for text in texts)

    def _has_bad_ratio(self, texts: list[str]) -> bool:
        shorter, longer = sorted(map(len, texts))
        return longer >= _SHORTEST_FOR_RATIO and longer > self._filters.max_ratio * shorter

    def _has_other_letters(self, texts: list[str]) -> bool:
        for text, letters, has_latin in zip(texts, self._letters, self._has_latin, strict=True):
            if has_latin and text.isascii():
                continue
            count = sum(map(str.isalpha, text))
            if count and len(letters.findall(text)) < self._filters.min_script_share * count:
                return True
        return False

    def _is_copy(self, texts: list[str]) -> bool:
        first, second = (" ".join(text.casefold().split()) for text in texts)
        least = self._filters.max_similarity
        return Levenshtein.normalized_similarity(first, second, score_cutoff=least) >= least > 0


def _letters_in(names: str) -> "regex.Pattern[str]":
    """Returns a pattern that finds the letters of some scripts.

    Marks without a script of their own, such as accents, are no letters, as in `str.isalpha`.
    """
    for name in names.split("+"):
        if name not in _SCRIPTS:
            raise CorpusError(f"there is no script {name}; there are {', '.join(_SCRIPTS)}, several joined by +")
    inside = "".join(rf"\p{{Script={name}}}" for name in names.split("+"))
    return regex.compile(rf"[\p{{L}}&&[{inside}]]", flags=regex.V1)


def _scripts(names: Sequence[str], filters: Filters) -> list[str]:
    """Returns the scripts of each file."""
    if filters.scripts is not None:
        if len(filters.scripts) != len(names):
            raise CorpusError(f"{len(filters.scripts)} scripts are given for {len(names)} files: give one for each")
        return list(filters.scripts)
    found = []
    for name in names:
        lines = itertools.islice(byte_lines(name, name), _LINES_LOOKED_AT)
        text = b"".join(lines).decode("utf-8", errors="ignore")
        counts = {script: len(_letters_in(script).findall(text)) for script in _SCRIPTS}
        often = [script for script, count in counts.items() if count > _SHARE_OF_A_SCRIPT * sum(counts.values())]
        found.append("+".join(often) or "Latin")
    return found


def _aligned(names: Sequence[str]) -> Iterator[list[bytes]]:
    """Yields each line of all files, without line ends."""
    for number, lines in enumerate(itertools.zip_longest(*(byte_lines(name, name) for name in names))):
        if None in lines:
            shorter = names[lines.index(None)]
            longer = next(name for name, line in zip(names, lines, strict=True) if line is not None)
            raise CorpusError(
                f"{shorter} has {number} lines and {longer} has more: line-aligned files must have equally many lines"
            )
        yield [_content(line, number) for line in lines]


def _content(line: bytes, number: int) -> bytes:
    line = line.removeprefix(BYTE_ORDER_MARK) if number == 0 else line
    if line.endswith(b"\n"):
        return line[:-2] if line.endswith(b"\r\n") else line[:-1]
    return line


def _note(taken: Taken, number: int, texts: list[str], most: int, draw: random.Random) -> None:
    """Counts a line, and keeps it as an example with the same chance as every line so far."""
    taken.count += 1
    example = {"line": number + 1, "text": texts}
    if len(taken.examples) < most:
        taken.examples.append(example)
    elif (place := draw.randrange(taken.count)) < most:
        taken.examples[place] = example


@contextmanager
def _output(path: Path) -> Iterator[Any]:
    """Opens a file, plain or compressed, that appears only when complete."""
    with atomic_write(path) as temporary, open_bytes(temporary, "wb", suffix_of(path)) as file:
        yield file
