"""Minimum Bayes risk (Kumar and Byrne 2004): of several translations, the one that agrees most with all the others."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from vanilla_transformer.translation.translator import Hypothesis, LineTranslator, Translation

Utility = Literal["chrf", "bleu"]


@dataclass(frozen=True)
class MinimumBayesRiskTranslator(LineTranslator):
    """Translates lines to several hypotheses with scores, and puts those first that agree most with all of them."""

    utility: Utility

    def translate(self, lines: list[str], progress: Callable[[int], object] = lambda count: None) -> list[Translation]:
        """Translates like any `LineTranslator`, with mean utilities as scores; ties keep the order of the search."""
        return [
            replace(translation, hypotheses=best_hypotheses(translation.hypotheses, self.utility))
            for translation in super().translate(lines, progress)
        ]


def best_hypotheses(hypotheses: tuple[Hypothesis, ...], utility: Utility) -> tuple[Hypothesis, ...]:
    """Returns the hypotheses best first, by their mean sentence score against all as references.

    The mean is weighted by the hypotheses' probabilities, and becomes their score.
    """
    from sacrebleu.metrics import BLEU, CHRF

    metric: Any = CHRF() if utility == "chrf" else BLEU(effective_order=True)
    scores = [one.score or 0.0 for one in hypotheses]
    weights: dict[str, float] = {}  # Several hypotheses may read the same.
    for one, score in zip(hypotheses, scores, strict=True):
        weights[one.text] = weights.get(one.text, 0.0) + math.exp(score - max(scores))
    total = sum(weights.values())
    means = {
        text: sum(weight * metric.sentence_score(text, [other]).score for other, weight in weights.items()) / total
        for text in weights
    }
    ranked = sorted(hypotheses, key=lambda one: -means[one.text])
    return tuple(replace(one, score=means[one.text]) for one in ranked)
