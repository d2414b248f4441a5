"""Tasks that a run trains for: one file each, with the same interface, found by name."""

from vanilla_transformer.tasks.evaluation import evaluate
from vanilla_transformer.tasks.interface import Batch, Prediction, Predictor, RowRandom, Task
from vanilla_transformer.tasks.registry import get_task, register_task, scores_translations, task_for, task_of_model
from vanilla_transformer.tasks.sizes import MODEL_FIELDS, SIZES, SizePreset

__all__ = [
    "MODEL_FIELDS",
    "SIZES",
    "Batch",
    "Prediction",
    "Predictor",
    "RowRandom",
    "SizePreset",
    "Task",
    "evaluate",
    "get_task",
    "register_task",
    "scores_translations",
    "task_for",
    "task_of_model",
]
