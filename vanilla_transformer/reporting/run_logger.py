"""What a run says while it goes: progress bar, train.log and metrics.jsonl."""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from vanilla_transformer.atomic_files import replace_text


class JournalError(OSError):
    """A log that cannot be written, said in one sentence."""


class Journal:
    """Tells the same to the screen and to the files; on other processes than the main one it is silent."""

    def __init__(self, metrics: Path, log: Path, *, speaks: bool) -> None:
        self.metrics, self.log = metrics, log
        self.speaks = speaks
        self.bar: tqdm | None = None

    def say(self, message: str) -> None:
        """One sentence for the person in front of the screen and for the log."""
        if self.speaks:
            tqdm.write(message, file=sys.stderr)
            self.note(message)

    def note(self, message: str) -> None:
        """One sentence for the log alone."""
        if self.speaks:
            _append(self.log, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}")

    def record(self, record: dict[str, Any], words: str) -> None:
        """Adds a line to metrics.jsonl, and its words to the log and, where there is no bar, to the screen."""
        if self.speaks:
            _append(self.metrics, json.dumps({name: value for name, value in record.items() if math.isfinite(value)}))
            self.note(words)
            if self.bar is None:
                print(words, file=sys.stderr, flush=True)

    def start_bar(self, *, total: int, done: int) -> None:
        """Shows a progress bar where somebody can see one; a file or a pipe gets a line for each record instead."""
        if self.speaks and sys.stderr.isatty():
            self.bar = tqdm(total=total, initial=done, unit="step", dynamic_ncols=True, smoothing=0.1)

    def advance(self, figures: str) -> None:
        """One step more on the bar, and the latest figures beside it."""
        if self.bar is not None:
            self.bar.set_postfix_str(figures, refresh=False)
            self.bar.update()

    def end_bar(self) -> None:
        """Leaves the bar as it stands and goes on below it."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, without those that are none of its own, such as one that was cut short."""
        return [record for line in self._lines() if (record := _parsed(line)) is not None]

    def forget_after(self, step: int) -> None:
        """Drops the records of steps that are about to be made again, and unreadable lines, which it counts."""
        if self.speaks and self.metrics.exists():
            records = self.records()
            unreadable = len(self._lines()) - len(records)
            if unreadable:
                lines = "line is" if unreadable == 1 else "lines are"
                self.say(f"{unreadable:,} {lines} dropped from {self.metrics.name}: cut short or damaged.")
            kept = [json.dumps(record) for record in records if record["step"] <= step]
            replace_text(self.metrics, "".join(f"{line}\n" for line in kept))

    def _lines(self) -> list[bytes]:
        """The lines of metrics.jsonl as they stand, but for empty ones."""
        data = self.metrics.read_bytes() if self.metrics.exists() else b""
        return [line for line in data.split(b"\n") if line.strip()]


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The record in a line, which holds finite numbers alone and among them the step; None for anything else."""
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        return None
    return record if all(type(value) in (int, float) and math.isfinite(value) for value in record.values()) else None


def _append(file: Path, line: str) -> None:
    try:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    except OSError as error:
        raise JournalError(
            f"{file} cannot be written ({error.strerror}): when that is mended, the same command goes on."
        ) from error
