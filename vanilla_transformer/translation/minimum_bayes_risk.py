"""Minimum Bayes risk (Kumar and Byrne 2004): of several translations, the one that agrees most with all the others."""

import math
from dataclasses import replace
from typing import Literal

from vanilla_transformer.translation.translator import TranslationResult

Utility = Literal["chrf", "bleu"]


def by_minimum_bayes_risk(translation: TranslationResult, utility: Utility) -> TranslationResult:
    """Returns a translation with its hypotheses by their mean sentence score against all as references, best first.

    The mean is weighted by the exponential of the hypotheses' own scores, and becomes their score. Ties keep their
    order.
    """
    from sacrebleu.metrics import BLEU, CHRF

    metric = CHRF() if utility == "chrf" else BLEU(effective_order=True)
    hypotheses = translation.hypotheses
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
    return replace(translation, hypotheses=tuple(replace(one, score=means[one.text]) for one in ranked))
