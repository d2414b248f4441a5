"""Faults of what is outside the package, one helper for each kind, shared by the tests that need them."""

import itertools
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook


@contextmanager
def at_update(number: int, act: Callable[[Optimizer], object], *, before: bool = False) -> Iterator[None]:
    """Calls `act` after, or before, the update of that number that any optimizer of this process makes."""
    updates = itertools.count(1)

    def hook(optimizer: Optimizer, *_: object) -> None:
        if next(updates) == number:
            act(optimizer)

    handle = (register_optimizer_step_pre_hook if before else register_optimizer_step_post_hook)(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Lets this process make no file larger than `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
