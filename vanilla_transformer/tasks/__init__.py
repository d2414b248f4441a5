"""Tasks that a run trains for: one file each, with the same interface, found by name."""

from vanilla_transformer.tasks.evaluation import as_in_training, evaluate, metrics_of_model
from vanilla_transformer.tasks.interface import Batch, Prediction, Predictor, RowRandom, SpecialTokens, Task
from vanilla_transformer.tasks.registry import get_task, register_task, task_for, task_of_model

__all__ = [
    "Batch",
    "Prediction",
    "Predictor",
    "RowRandom",
    "SpecialTokens",
    "Task",
    "as_in_training",
    "evaluate",
    "get_task",
    "metrics_of_model",
    "register_task",
    "task_for",
    "task_of_model",
]
