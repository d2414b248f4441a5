"""Minimum Bayes risk (Kumar and Byrne 2004): chooses the translation that agrees most with all the others."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from vanilla_transformer.translation import Hypothesis, Translation


def chrf_of_pairs(texts: Sequence[str]) -> np.ndarray:
    """Returns sacreBLEU's sentence chrF of each text (row) against each text (column), (texts, texts)."""
    characters = ["".join(text.split()) for text in texts]
    lengths = np.array([len(text) for text in characters])
    precision, recall, orders = (np.zeros((len(texts), len(texts))) for _ in range(3))
    for order in range(1, CHRF.CHAR_ORDER + 1):
        totals = np.maximum(lengths - order + 1, 0)
        matches = _matches([[text[i : i + order] for i in range(len(text) - order + 1)] for text in characters])
        counts = (totals[:, None] > 0) & (totals[None] > 0)
        precision += np.divide(matches, totals[:, None], out=np.zeros_like(matches), where=counts)
        recall += np.divide(matches, totals[None], out=np.zeros_like(matches), where=counts)
        orders += counts
    precision, recall = (part / np.maximum(orders, 1) for part in (precision, recall))
    factor = CHRF.BETA**2
    weighted = factor * precision + recall
    return 100 * (1 + factor) * precision * recall / np.where(weighted > 0, weighted, 1)


def bleu_of_pairs(texts: Sequence[str]) -> np.ndarray:
    """Returns sacreBLEU's sentence BLEU, of effective order, of each text (row) against each text (column)."""
    metric = BLEU(effective_order=True)
    words = [metric.tokenizer(text.rstrip()).split() for text in texts]
    lengths = np.array([len(row) for row in words])
    logs, smoothing = np.zeros((len(texts), len(texts))), np.ones((len(texts), len(texts)))
    any_match = np.zeros((len(texts), len(texts)), dtype=bool)
    for order in range(1, metric.max_ngram_order + 1):
        totals = np.maximum(lengths - order + 1, 0)[:, None]
        matches = _matches([[tuple(row[i : i + order]) for i in range(len(row) - order + 1)] for row in words])
        any_match |= matches > 0
        smoothing = np.where(matches > 0, smoothing, 2 * smoothing)
        precision = np.where(matches > 0, matches, 1 / smoothing) / np.maximum(totals, 1)
        logs += np.where(totals > 0, np.log(100 * precision), 0)
    ratio = lengths[None] / np.maximum(lengths, 1)[:, None]
    brevity = np.minimum(0, 1 - ratio)
    orders = np.clip(lengths, 1, metric.max_ngram_order)[:, None]
    return np.where(any_match, np.exp(brevity + logs / orders), 0)


UTILITIES: dict[str, Callable[[Sequence[str]], np.ndarray]] = {"chrf": chrf_of_pairs, "bleu": bleu_of_pairs}


@dataclass(frozen=True)
class MinimumBayesRisk:
    """Scores each translation of a line by its mean utility with all of them as references.

    Hypotheses of a beam are weighted by the exponentials of their scores; samples, which have no scores, count each
    time they were drawn.

    Attributes:
        utility: `chrf` or `bleu`, for a pair of sentences.
    """

    utility: str

    def scores(self, lines: Sequence[str], translations: Sequence[Translation]) -> list[list[float]]:
        """Returns the scores of each line's translations."""
        return [self._scores(translation.hypotheses) for translation in translations]

    def _scores(self, hypotheses: Sequence[Hypothesis]) -> list[float]:
        scores = np.array([one.score or 0.0 for one in hypotheses])
        weights: dict[str, float] = {}  # Many samples are the same.
        for one, weight in zip(hypotheses, np.exp(scores - scores.max()), strict=True):
            weights[one.text] = weights.get(one.text, 0.0) + weight
        shares = np.array(list(weights.values()))
        utilities = UTILITIES[self.utility](list(weights)) @ shares / shares.sum()
        of_text = dict(zip(weights, utilities.tolist(), strict=True))
        return [of_text[one.text] for one in hypotheses]


def _matches(grams: Sequence[Sequence[Hashable]]) -> np.ndarray:
    """Counts n-grams shared by any two texts, (texts, texts): the k-th copy in one matches the k-th in the other."""
    columns: dict[tuple[Hashable, int], int] = {}
    places = []
    for row, ones in enumerate(grams):
        seen: Counter[Hashable] = Counter()
        for gram in ones:
            places.append((row, columns.setdefault((gram, seen[gram]), len(columns))))
            seen[gram] += 1
    table = np.zeros((len(grams), len(columns)), dtype=np.float32)
    if places:
        table[tuple(zip(*places, strict=True))] = 1
    return (table @ table.T).astype(np.float64)
