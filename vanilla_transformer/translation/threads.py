"""Sharing of a CPU by batches: two at a time."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import torch

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


def run_in_threads(work: Callable[[_Part], _Result], parts: list[_Part], device: torch.device) -> Iterator[_Result]:
    """Runs `work` on each part, in order; on a CPU two at a time, each with half of torch's threads.

    Otherwise the single-threaded work of one, such as choosing candidates, would keep the other threads waiting.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads < 2 or len(parts) < 2:
        yield from map(work, parts)
        return
    contexts = [copy_context() for _ in parts]
    try:
        with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=((threads + 1) // 2,)) as pool:
            # Blocks of `frozen` are those of this thread's context; a context runs in one thread at a time.
            yield from pool.map(lambda context, part: context.run(work, part), contexts, parts)
    finally:
        # Each thread has its own setting, but a new one starts with the last that was set anywhere.
        torch.set_num_threads(threads)
