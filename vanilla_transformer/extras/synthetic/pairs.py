"""Synthetic pairs for back-translation and distillation: selects the lines to translate and the pairs to keep.

Reads a text line by line, whatever its size, and counts in a report what each filter removes.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from vanilla_transformer.atomic_files import atomic_write, atomic_write_text, sync
from vanilla_transformer.extras.cleaning.duplicates import Duplicates
from vanilla_transformer.limits import check_number, check_whole
from vanilla_transformer.translation.lines import MAX_SOURCE_LENGTH, one_line

SOURCE, TARGET, REPORT = "source.txt", "target.txt", "report.json"
# Lines that are tokenized together.
_TOGETHER = 1000
_WORD = re.compile(r"[^\W\d_]+")

# Counts the tokens of each text, including the one that ends a sentence.
TokenCounter = Callable[[list[str]], list[int]]


class SyntheticError(ValueError):
    """Lines and translations that do not belong together; the message says what to do."""


@dataclass(frozen=True)
class Filters:
    """Filters of synthetic pairs.

    Attributes:
        max_length: Maximum number of tokens of a line and of its translation.
        length_ratio: Maximum ratio of the longer side to the shorter one, in tokens.
        copy_overlap: Maximum share of a translation's words that also stand in its line; None for no limit.

    Raises:
        SettingError: A value makes no sense.
    """

    max_length: int = 256
    length_ratio: float = 3.0
    copy_overlap: float | None = None

    def __post_init__(self) -> None:
        check_whole("max_length", self.max_length, 1)
        check_number("length_ratio", self.length_ratio, 1)
        check_number("copy_overlap", self.copy_overlap, 0, 1)

    def reason(self, line: str, translation: str, tokens: tuple[int, int]) -> str | None:
        """Names the filter that removes a line and its translation, given their token counts; None if kept."""
        if not translation.strip():
            return "empty_translation"
        if max(tokens) > self.max_length:
            return "too_long_translation"
        if max(tokens) > self.length_ratio * min(tokens):
            return "length_ratio"
        if self.copy_overlap is not None and overlap(line, translation) > self.copy_overlap:
            return "copy"
        return None


def overlap(line: str, translation: str) -> float:
    """Returns the share of a translation's words that stand in its line, ignoring case; numbers are no words."""
    words, known = Counter(_WORD.findall(translation.casefold())), set(_WORD.findall(line.casefold()))
    return sum(count for word, count in words.items() if word in known) / max(1, words.total())


def select_lines(
    lines: Callable[[], Iterable[str]],
    output: Path,
    count_tokens: TokenCounter,
    max_length: int,
    progress: Callable[[int], object] = lambda lines: None,
) -> dict[str, int]:
    """Writes the lines to translate, without repetitions; returns how many were read and how many each filter removed.

    Args:
        lines: Returns the lines from the beginning. It is called twice: first to find repetitions.

    Raises:
        SyntheticError: The second call gives another number of lines.
    """
    is_repeated = bytearray()
    with Duplicates() as duplicates:
        for number, line in enumerate(lines()):
            is_repeated.append(False)
            if line.strip():
                duplicates.add(number, [line])
        for number in duplicates.positions():
            is_repeated[number] = True
    counts = Counter({"read": 0, "empty": 0, "duplicate": 0, "too_long": 0, "kept": 0})
    otherwise = "The text changed while it was read: start over."
    # Several processes may do this at once; all of them write the same.
    with atomic_write(output) as temporary:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            for some in _chunks(_aligned(map(one_line, lines()), is_repeated, otherwise)):
                full = [(line, repeated) for line, repeated in some if line.strip()]
                new = [line for line, repeated in full if not repeated]
                short = [line for line, n in zip(new, count_tokens(new), strict=True) if n <= max_length]
                file.writelines(f"{line}\n" for line in short)
                counts.update(
                    read=len(some),
                    empty=len(some) - len(full),
                    duplicate=len(full) - len(new),
                    too_long=len(new) - len(short),
                    kept=len(short),
                )
                progress(len(some))
        sync(temporary)
    return dict(counts)


def write_pairs(
    lines: Iterable[str],
    translations: Iterable[str],
    directory: Path,
    count_tokens: TokenCounter,
    filters: Filters,
    *,
    translated: str,
    report: dict[str, Any],
    progress: Callable[[int], object] = lambda lines: None,
) -> dict[str, Any]:
    """Writes the pairs that pass the filters as two aligned files, then the report beside them; returns the report.

    The report's `shared_words` is the share of the words in the first translations that stand anywhere in their lines.
    Measured between English, German and French it was 2% to 19%, within each of them above 80%.

    Args:
        translated: The side of the pairs that was translated, `SOURCE` or `TARGET`.
        report: What is known of the lines before their translation.

    Raises:
        SyntheticError: The numbers of lines and translations differ.
    """
    counts = Counter(dict.fromkeys(("empty_translation", "too_long_translation", "length_ratio", "copy"), 0))
    kept, other, shared = 0, SOURCE if translated == TARGET else TARGET, None
    with (
        atomic_write(directory / other) as path,
        atomic_write(directory / translated) as translated_path,
        open(path, "w", encoding="utf-8", newline="\n") as file,
        open(translated_path, "w", encoding="utf-8", newline="\n") as translated_file,
    ):
        otherwise = "There are not as many translations as lines: delete both, and start over."
        for pairs in _chunks(_aligned(lines, translations, otherwise)):
            if shared is None:
                shared = overlap(*map(" ".join, zip(*pairs, strict=True)))
            tokens = zip(*(count_tokens([pair[side] for pair in pairs]) for side in (0, 1)), strict=True)
            reasons = [
                filters.reason(line, translation, both)
                for (line, translation), both in zip(pairs, tokens, strict=True)
            ]
            counts.update(reason for reason in reasons if reason is not None)
            good = [pair for pair, reason in zip(pairs, reasons, strict=True) if reason is None]
            file.writelines(f"{line}\n" for line, _ in good)
            translated_file.writelines(f"{translation}\n" for _, translation in good)
            kept += len(good)
            progress(len(pairs))
    dropped = {**report["dropped"], **counts}
    report = {**report, "dropped": dropped, "kept": kept, "shared_words": round(shared or 0, 3)}
    atomic_write_text(directory / REPORT, json.dumps(report, indent=1) + "\n")
    return report


def _aligned(lines: Iterable[str], others: Iterable[Any], otherwise: str) -> Iterator[tuple[str, Any]]:
    for line, other in zip_longest(lines, others):
        if line is None or other is None:
            raise SyntheticError(otherwise)
        yield line, other


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(items)
    while some := list(islice(left, _TOGETHER)):
        yield some


def longest_source(model: str, max_length: int) -> int:
    """Returns the most tokens that a model translates without cutting the line, at most `max_length`."""
    most = min(max_length, MAX_SOURCE_LENGTH)
    from vanilla_transformer.translation.loading import saved_config

    config = saved_config(model)
    learned = getattr(config, "positional_encoding", None) == "learned"
    return min(most, config.max_position_embeddings) if learned else most


def token_counter(model: str, enough: int) -> TokenCounter:
    """Returns a function that counts tokens as a model reads them; it may stop at `enough`."""
    from vanilla_transformer.plain_text import plain_text
    from vanilla_transformer.translation.loading import load_tokenizer
    from vanilla_transformer.translation.long_lines import beginning

    own = plain_text(load_tokenizer(model))

    def count(texts: Sequence[str]) -> list[int]:
        beginnings = [beginning(own, text, enough) for text in texts]
        return [len(ids) for ids in own(beginnings)["input_ids"]] if beginnings else []

    return count
