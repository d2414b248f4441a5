"""Minimum Bayes risk (Kumar and Byrne 2004): of several translations, the one that agrees most with all the others."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from vanilla_transformer.translation.lines import Hypothesis, Translation
from vanilla_transformer.translation.translator import LineTranslator

Utility = Literal["chrf", "bleu"]


@dataclass(frozen=True)
class MinimumBayesRiskTranslator(LineTranslator):
    """Translates lines to several hypotheses with scores, and puts those first that agree most with all of them.

    Attributes:
        utility: The agreement of two hypotheses.
    """

    utility: Utility

    def translate(self, lines: list[str], progress: Callable[[int], object] | None = None) -> list[Translation]:
        """Translates like any `LineTranslator`, with mean utilities as scores; ties keep the order of the search."""
        return [
            replace(translation, hypotheses=best_hypotheses(translation.hypotheses, self.utility))
            for translation in super().translate(lines, progress)
        ]


def best_hypotheses(hypotheses: tuple[Hypothesis, ...], utility: Utility) -> tuple[Hypothesis, ...]:
    """Returns the hypotheses with their mean utilities as scores, best first."""
    utilities = mean_utilities(hypotheses, utility)
    rescored = [replace(one, score=mean) for one, mean in zip(hypotheses, utilities, strict=True)]
    return tuple(sorted(rescored, key=lambda one: -(one.score or 0.0)))


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
