"""Minimum Bayes risk: the translation chosen is the one with the highest mean of sacreBLEU's sentence scores."""

import math

import pytest
from sacrebleu.metrics import BLEU, CHRF

from vanilla_transformer.translation.lines import Hypothesis, Translation
from vanilla_transformer.translation.minimum_bayes_risk import MinimumBayesRiskTranslator

METRICS = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}


class Fixed:
    """Gives each line the same translations."""

    model, chunk_lines = None, 10

    def __init__(self, *texts, scores=None):
        scores = scores or [0.0] * len(texts)
        self.found = Translation(tuple(Hypothesis(*pair, 1) for pair in zip(texts, scores, strict=True)))

    def translate(self, lines, progress=None):
        return [self.found for _ in lines]


@pytest.mark.parametrize("utility", METRICS)
def test_the_translation_that_agrees_most_is_first(utility):
    texts = ["an odd one", "the dog runs fast", "the dog runs very fast", "the dog runs fast now", "an odd one"]
    (found,) = MinimumBayesRiskTranslator(Fixed(*texts), utility, kept=3).translate(["x"])
    means = [sum(METRICS[utility].sentence_score(one, [other]).score for other in texts) / 5 for one in texts]
    best = sorted(range(5), key=lambda place: -means[place])[:3]
    assert [one.text for one in found.hypotheses] == [texts[place] for place in best]
    assert [one.score for one in found.hypotheses] == pytest.approx([means[place] for place in best])
    assert found.text.startswith("the dog runs fast")


def test_two_hypotheses_of_one_text_count_twice():
    (found,) = MinimumBayesRiskTranslator(Fixed("aaaa aaaa", "bbbb bbbb", "bbbb bbbb"), "chrf").translate(["x"])
    assert found.text == "bbbb bbbb" and found.score == pytest.approx(200 / 3)


def test_likelier_hypotheses_of_a_beam_count_more():
    texts, scores = ["aaaa aaaa", "bbbb bbbb", "bbbb bbbb"], [math.log(0.6), math.log(0.3), math.log(0.1)]
    (found,) = MinimumBayesRiskTranslator(Fixed(*texts, scores=scores), "chrf").translate(["x"])
    assert found.text == "aaaa aaaa" and found.score == pytest.approx(60)


def test_lines_without_text_stay_empty():
    (found,) = MinimumBayesRiskTranslator(Fixed("", ""), "bleu").translate([""])
    assert found.text == ""
