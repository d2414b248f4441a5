"""Minimum Bayes risk: the translation chosen is the one with the highest mean of sacreBLEU's sentence scores."""

import math

import pytest
from sacrebleu.metrics import BLEU, CHRF

from vanilla_transformer.translation import Hypothesis, TranslationResult
from vanilla_transformer.translation.minimum_bayes_risk import by_minimum_bayes_risk

METRICS = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}


def chosen(utility, *texts, scores=None):
    scores = scores or [0.0] * len(texts)
    hypotheses = tuple(Hypothesis(*pair) for pair in zip(texts, scores, strict=True))
    return by_minimum_bayes_risk(TranslationResult(hypotheses), utility).hypotheses


@pytest.mark.parametrize("utility", METRICS)
def test_the_translation_that_agrees_most_is_first(utility):
    texts = ["an odd one", "the dog runs fast", "the dog runs very fast", "the dog runs fast now", "an odd one"]
    found = chosen(utility, *texts)
    means = [sum(METRICS[utility].sentence_score(one, [other]).score for other in texts) / 5 for one in texts]
    best = sorted(range(5), key=lambda place: -means[place])
    assert [one.text for one in found] == [texts[place] for place in best]
    assert [one.score for one in found] == pytest.approx([means[place] for place in best])


def test_hypotheses_count_by_their_probability_and_equal_ones_together():
    same = chosen("chrf", "aaaa aaaa", "bbbb bbbb", "bbbb bbbb")[0]
    assert same.text == "bbbb bbbb" and same.score == pytest.approx(200 / 3)
    scores = [math.log(0.6), math.log(0.3), math.log(0.1)]
    likely = chosen("chrf", "aaaa aaaa", "bbbb bbbb", "bbbb bbbb", scores=scores)[0]
    assert likely.text == "aaaa aaaa" and likely.score == pytest.approx(60)
    assert chosen("bleu", "", "")[0].text == ""
