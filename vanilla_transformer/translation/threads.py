"""Sharing of a CPU by batches: two at a time, and a single one without threads that would wait for a busy core."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import torch

from vanilla_transformer.cores import free_threads

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


def run_in_threads(
    work: Callable[[_Part], _Result], parts: list[_Part], device: torch.device, small: bool = False
) -> Iterator[_Result]:
    """Runs `work` on each part, in order; on a CPU two at a time, each with half of torch's threads.

    Otherwise the single-threaded work of one, such as choosing candidates, would keep the other threads waiting. A
    single part has as many threads as there are free cores, or one if it is `small`: what threads save on its products
    they lose waiting for each other.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads < 2 or not parts:
        yield from map(work, parts)
        return
    try:
        if len(parts) == 1:
            torch.set_num_threads(1 if small else free_threads(threads))
            yield work(parts[0])
            return
        contexts = [copy_context() for _ in parts]
        with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=((threads + 1) // 2,)) as pool:
            # Blocks of `frozen` are those of this thread's context; a context runs in one thread at a time.
            yield from pool.map(lambda context, part: context.run(work, part), contexts, parts)
    finally:
        # Each thread has its own setting, but a new one starts with the last that was set anywhere.
        torch.set_num_threads(threads)
