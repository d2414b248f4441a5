"""A finished run in Python: its directory and its results."""

import base64
import html
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vanilla_transformer.training.summary import CURVES, SUMMARY, read_summary, scores_in

if TYPE_CHECKING:
    from vanilla_transformer.evaluation.metrics import Score


@dataclass(frozen=True, repr=False)
class TrainedRun(os.PathLike[str]):
    """The directory of a finished run, an `os.PathLike`. A notebook shows its scores and its curves.

    Attributes:
        directory: The directory of the model, with its tokenizer, card, log and learning curves.
    """

    directory: Path

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of the run: steps, seconds, losses, memory and more."""
        return read_summary(self.directory / SUMMARY) or {}

    @property
    def scores(self) -> "dict[str, dict[str, Score]]":
        """The score of each metric, by name, on `dev` and `test`, if given."""
        parts = scores_in(self.summary).items()
        return {part: {score.name: score for score in scores} for part, scores in parts}

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

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(part)}</td><td>{html.escape(name)}</td><td>{score.value:.2f}</td></tr>"
            for part, scores in self.scores.items()
            for name, score in scores.items()
        )
        table = f"<table><tr><th>data</th><th>metric</th><th>value</th></tr>{rows}</table>" if rows else ""
        picture = self._repr_png_()
        source = "" if picture is None else base64.b64encode(picture).decode()
        curves = f'<img alt="Learning curves" src="data:image/png;base64,{source}" style="max-width: 100%">'
        return f"<p><code>{html.escape(str(self))}</code></p>{table}{curves if source else ''}"
