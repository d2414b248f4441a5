"""Metrics, and the evaluation of a model on a corpus."""

from vanilla_transformer.evaluation.metrics import METRICS, Metric, Score, check_names, score
from vanilla_transformer.evaluation.scoring import ALONE, EvaluationResult, Processes, evaluate_translation

__all__ = [
    "ALONE",
    "METRICS",
    "EvaluationResult",
    "Metric",
    "Processes",
    "Score",
    "check_names",
    "evaluate_translation",
    "score",
]
