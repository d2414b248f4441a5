"""Reports of a running training: progress bar, train.log and metrics.jsonl."""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from vanilla_transformer.atomic_files import atomic_write_text
from vanilla_transformer.errors import RunError


class RunLogger:
    """Writes to the screen and to the log files of a run; disabled on all processes but the main one.

    Args:
        metrics: The metrics.jsonl of the run.
        log: The train.log of the run.
        enabled: Whether anything is shown or written.
    """

    def __init__(self, metrics: Path, log: Path, *, enabled: bool) -> None:
        self.metrics, self.log = metrics, log
        self.enabled = enabled
        self.bar: tqdm[Any] | None = None

    def info(self, message: str) -> None:
        """Shows a message on the screen and writes it to the log."""
        if self.enabled:
            tqdm.write(message, file=sys.stderr)
            self.debug(message)

    def debug(self, message: str) -> None:
        """Writes a message to the log only."""
        if self.enabled:
            _append(self.log, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}")

    def log_metrics(self, metrics: dict[str, Any], message: str) -> None:
        """Appends a line to metrics.jsonl, and the message to the log and, without a bar, to the screen."""
        if self.enabled:
            _append(self.metrics, json.dumps({name: value for name, value in metrics.items() if math.isfinite(value)}))
            self.debug(message)
            if self.bar is None:
                print(message, file=sys.stderr, flush=True)

    def start_bar(self, *, total: float, done: int) -> None:
        """Shows a progress bar in a terminal; a file or a pipe gets a line for each call of `log_metrics` instead."""
        if self.enabled and sys.stderr.isatty():
            self.bar = tqdm(total=total, initial=done, unit=" steps", dynamic_ncols=True, smoothing=0.1)

    def update_bar(self, figures: str) -> None:
        """Advances the bar by one step and shows the latest figures beside it."""
        if self.bar is not None:
            self.bar.set_postfix_str(figures, refresh=False)
            self.bar.update(1)

    def close_bar(self) -> None:
        """Leaves the bar as it is; later output appears below it."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def read_metrics(self) -> list[dict[str, Any]]:
        """Returns the records of metrics.jsonl, without lines that a kill has cut."""
        return [record for line in self._lines() if (record := _parsed(line)) is not None]

    def truncate_after(self, step: int) -> None:
        """Drops the records of steps that will be repeated, and damaged lines, whose number is reported."""
        if self.enabled and self.metrics.exists():
            records = self.read_metrics()
            damaged = len(self._lines()) - len(records)
            if damaged:
                lines = "line was" if damaged == 1 else "lines were"
                self.info(f"{damaged:,} damaged {lines} dropped from {self.metrics.name}.")
            kept = [json.dumps(record) for record in records if record["step"] <= step]
            atomic_write_text(self.metrics, "".join(f"{line}\n" for line in kept))

    def _lines(self) -> list[bytes]:
        """Returns the non-empty lines of metrics.jsonl."""
        data = self.metrics.read_bytes() if self.metrics.exists() else b""
        return [line for line in data.split(b"\n") if line.strip()]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _append(file: Path, line: str) -> None:
    try:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    except OSError as error:
        raise RunError(
            f"{file} cannot be written ({error.strerror}): fix that and run the same command again to continue."
        ) from error
