"""Metrics, and the evaluation of a model on a corpus."""

from vanilla_transformer.evaluation.metrics import METRICS, Score, check_names, score
from vanilla_transformer.evaluation.scoring import Evaluation, evaluate_model

__all__ = ["METRICS", "Evaluation", "Score", "check_names", "evaluate_model", "score"]
