"""Faults of what is outside the package, one helper for each kind, shared by the tests that need them."""

import itertools
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook


@contextmanager
def at_update(number: int, act: Callable[[Optimizer], object], *, before: bool = False) -> Iterator[None]:
    """Has `act` called after, or before, the update of that number that any optimizer of this process makes."""
    updates = itertools.count(1)

    def hook(optimizer: Optimizer, *_: object) -> None:
        if next(updates) == number:
            act(optimizer)

    register = register_optimizer_step_pre_hook if before else register_optimizer_step_post_hook
    handle = register(hook)
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


@contextmanager
def failing_disk(number: int, folder: Path = Path("/")) -> Iterator[None]:
    """Lets the system refuse, with this error, to put to disk what has been written to any file of a folder."""
    original = os.fsync

    def refuse(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(folder):
            raise OSError(number, os.strerror(number))
        original(descriptor)

    os.fsync = refuse
    try:
        yield
    finally:
        os.fsync = original


def interrupt(*_: object) -> None:
    """Does what Ctrl-C does."""
    raise KeyboardInterrupt


@contextmanager
def at_call(number: int, place: type, method: str, act: Callable[[], object] = interrupt) -> Iterator[None]:
    """Calls `act`, which interrupts this process unless given, before the call of that number of a class's method."""
    original, calls, is_inherited = getattr(place, method), itertools.count(1), method not in vars(place)

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if next(calls) == number:
            act()
        return original(*arguments, **named)

    setattr(place, method, interrupted)
    try:
        yield
    finally:
        delattr(place, method) if is_inherited else setattr(place, method, original)


@contextmanager
def standard_streams(**files: Any) -> Iterator[None]:
    """Replaces `stdin`, `stdout` or `stderr`."""
    before = {name: getattr(sys, name) for name in files}
    vars(sys).update(files)
    try:
        yield
    finally:
        vars(sys).update(before)
