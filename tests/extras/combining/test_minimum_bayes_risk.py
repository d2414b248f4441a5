"""Minimum Bayes risk: the utilities are sacreBLEU's, and the translation chosen is the one with the highest mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF

from vanilla_transformer.extras.combining.minimum_bayes_risk import UTILITIES, MinimumBayesRisk
from vanilla_transformer.extras.combining.rescoring import RescoringTranslator
from vanilla_transformer.translation.lines import Hypothesis, Translation

METRICS = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}
TEXTS = st.lists(st.text(alphabet="abä .,d", max_size=24), min_size=1, max_size=6)


@pytest.mark.parametrize("utility", UTILITIES)
@given(texts=TEXTS)
def test_utilities_of_all_pairs_are_sacrebleus(utility, texts):
    expected = [[METRICS[utility].sentence_score(one, [other]).score for other in texts] for one in texts]
    np.testing.assert_allclose(UTILITIES[utility](texts), expected, atol=1e-4)


@pytest.mark.parametrize("utility", UTILITIES)
def test_real_sentences_too(utility):
    texts = [
        "A dog runs through the high grass.",
        "A dog runs through the tall grass, barking.",
        "A dog, a dog, a dog!",
        "Two men in the 3.5 metre boat.",
        "dog",
        "",
        "A dog runs through the high grass.",
    ]
    expected = [[METRICS[utility].sentence_score(one, [other]).score for other in texts] for one in texts]
    np.testing.assert_allclose(UTILITIES[utility](texts), expected, rtol=1e-6, atol=1e-9)


class Fixed:
    """Gives each line the same translations."""

    model, chunk_lines = None, 10

    def __init__(self, *texts, scores=None):
        scores = scores or [None] * len(texts)
        self.found = Translation(tuple(Hypothesis(*pair, 1) for pair in zip(texts, scores, strict=True)))

    def translate(self, lines, progress=None):
        return [self.found for _ in lines]


@pytest.mark.parametrize("utility", UTILITIES)
def test_the_translation_that_agrees_most_is_first(utility):
    texts = ["an odd one", "the dog runs fast", "the dog runs very fast", "the dog runs fast now", "an odd one"]
    translator = RescoringTranslator(Fixed(*texts), MinimumBayesRisk(utility), kept=3)
    (found,) = translator.translate(["x"])
    means = [np.mean([METRICS[utility].sentence_score(one, [other]).score for other in texts]) for one in texts]
    best = sorted(range(5), key=lambda place: -means[place])[:3]
    assert [one.text for one in found.hypotheses] == [texts[place] for place in best]
    assert [one.score for one in found.hypotheses] == pytest.approx([means[place] for place in best], abs=1e-4)
    assert found.text.startswith("the dog runs fast")


def test_a_sample_drawn_twice_counts_twice():
    texts = ["aaaa aaaa", "bbbb bbbb", "bbbb bbbb"]
    (found,) = RescoringTranslator(Fixed(*texts), MinimumBayesRisk("chrf")).translate(["x"])
    assert found.text == "bbbb bbbb" and found.score == pytest.approx(200 / 3)


def test_likelier_hypotheses_of_a_beam_count_more():
    texts, scores = ["aaaa aaaa", "bbbb bbbb", "bbbb bbbb"], [np.log(0.6), np.log(0.3), np.log(0.1)]
    (found,) = RescoringTranslator(Fixed(*texts, scores=scores), MinimumBayesRisk("chrf")).translate(["x"])
    assert found.text == "aaaa aaaa" and found.score == pytest.approx(60)
