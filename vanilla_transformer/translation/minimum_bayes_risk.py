"""Minimum Bayes risk (Kumar and Byrne 2004): of several translations, the one that agrees most with all the others."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from vanilla_transformer.translation import Hypothesis, Translation

if TYPE_CHECKING:
    from vanilla_transformer.translation.lines import Translator

Utility = Literal["chrf", "bleu"]


@dataclass(frozen=True)
class MinimumBayesRiskTranslator:
    """Translates lines, and keeps of each one's hypotheses those that agree most with all of them.

    Attributes:
        candidates: The translator that gives several hypotheses, with scores, for each line.
        utility: The agreement of two hypotheses.
        kept: Number of hypotheses returned for each line.
    """

    candidates: "Translator"
    utility: Utility
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
        """Translates like any `Translator`, with mean utilities as scores; ties keep the order of the search."""
        return [
            replace(translation, hypotheses=self._best(translation.hypotheses))
            for translation in self.candidates.translate(lines, progress)
        ]

    def _best(self, hypotheses: tuple[Hypothesis, ...]) -> tuple[Hypothesis, ...]:
        utilities = mean_utilities(hypotheses, self.utility)
        order = sorted(range(len(hypotheses)), key=lambda place: -utilities[place])
        return tuple(replace(hypotheses[place], score=utilities[place]) for place in order[: self.kept])


def mean_utilities(hypotheses: tuple[Hypothesis, ...], utility: Utility) -> list[float]:
    """Returns each hypothesis's mean sentence score against all as references, weighted by their probabilities."""
    from sacrebleu.metrics import BLEU, CHRF

    metric: Any = CHRF() if utility == "chrf" else BLEU(effective_order=True)
    scores = [one.score or 0.0 for one in hypotheses]
    weights: dict[str, float] = {}  # Several hypotheses may read the same.
    for one, score in zip(hypotheses, scores, strict=True):
        weights[one.text] = weights.get(one.text, 0.0) + math.exp(score - max(scores))
    total = sum(weights.values())
    utilities = {
        text: sum(weight * metric.sentence_score(text, [other]).score for other, weight in weights.items()) / total
        for text in weights
    }
    return [utilities[one.text] for one in hypotheses]
