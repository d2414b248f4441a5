"""A finished run in Python: its directory and its results."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vanilla_transformer.evaluation.metrics import Score
from vanilla_transformer.training.summary import CURVES, SUMMARY, Summary, read_summary


@dataclass(frozen=True, repr=False)
class TrainedRun(os.PathLike[str]):
    """The directory of a finished run, an `os.PathLike`. A notebook shows its curves.

    Attributes:
        directory: The directory of the model, with its tokenizer, card, log and learning curves.
    """

    directory: Path

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of the run: steps, seconds, losses, memory and more."""
        return read_summary(self.directory / SUMMARY) or {}

    @property
    def scores(self) -> dict[str, dict[str, Score]]:
        """The score of each metric, by name, on `dev` and `test`, if given."""
        summary = Summary.read(self.directory / SUMMARY)
        parts = summary.scores if summary else {}
        return {part: {score.name: score for score in scores} for part, scores in parts.items()}

    def __fspath__(self) -> str:
        return str(self.directory)

    def __str__(self) -> str:
        return str(self.directory)

    def __repr__(self) -> str:
        values = {part: {name: score.value for name, score in of.items()} for part, of in self.scores.items()}
        return f"{type(self).__name__}({str(self.directory)!r}, scores={values})"

    def __truediv__(self, name: str) -> Path:
        """Returns the path of a file in the directory."""
        return self.directory / name

    def _repr_png_(self) -> bytes | None:
        curves = self.directory / CURVES
        return curves.read_bytes() if curves.is_file() else None
