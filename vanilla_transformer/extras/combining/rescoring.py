"""Rescoring: several translations of each line, in another order than the search gave them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from vanilla_transformer.translation.lines import Translation, Translator


class Rescorer(Protocol):
    """A class that scores translations."""

    def scores(self, lines: Sequence[str], translations: Sequence[Translation]) -> Sequence[Sequence[float]]:
        """Returns the scores of each line's translations; the highest is the best."""


@dataclass(frozen=True)
class RescoringTranslator:
    """Translates lines, and keeps the translations of each that a rescorer scores best.

    Attributes:
        candidates: The translator that gives several translations of each line.
        rescorer: The rescorer that scores them.
        kept: Number of translations returned for each line.
    """

    candidates: Translator
    rescorer: Rescorer
    kept: int = 1

    @property
    def model(self) -> Any:
        """The model that translates."""
        return self.candidates.model

    @property
    def chunk_lines(self) -> int:
        """Number of lines that are best translated together."""
        return self.candidates.chunk_lines

    def translate(self, lines: list[str], progress: Callable[[int], object] | None = None) -> list[Translation]:
        """Translates like any `Translator`, with the rescorer's scores; ties keep the order of the search."""
        found = self.candidates.translate(lines, progress)
        return [
            replace(translation, hypotheses=self._best(translation, scores))
            for translation, scores in zip(found, self.rescorer.scores(lines, found), strict=True)
        ]

    def _best(self, translation: Translation, scores: Sequence[float]) -> Any:
        scored = [replace(one, score=score) for one, score in zip(translation.hypotheses, scores, strict=True)]
        return tuple(sorted(scored, key=lambda one: -one.score)[: self.kept])  # type: ignore[operator]
