"""What a run trains for: one file a task, each behind the same interface, found by its name."""

from vanilla_transformer.tasks.interface import Batch, RowRandom, SpecialTokens, Task
from vanilla_transformer.tasks.registry import get_task, register_task

__all__ = ["Batch", "RowRandom", "SpecialTokens", "Task", "get_task", "register_task"]
