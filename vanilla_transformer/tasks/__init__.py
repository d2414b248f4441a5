"""Tasks that a run trains for: one file each, with the same interface, found by name."""

from vanilla_transformer.tasks.evaluation import (
    choose_metrics,
    count_empty_rows,
    count_texts,
    evaluate,
    sample_texts,
    with_columns_of_model,
)
from vanilla_transformer.tasks.interface import Batch, Prediction, Predictor, RowRandom, Task
from vanilla_transformer.tasks.registry import get_task, register_task, task_for, task_of_model

__all__ = [
    "Batch",
    "Prediction",
    "Predictor",
    "RowRandom",
    "Task",
    "choose_metrics",
    "count_empty_rows",
    "count_texts",
    "evaluate",
    "get_task",
    "register_task",
    "sample_texts",
    "task_for",
    "task_of_model",
    "with_columns_of_model",
]
