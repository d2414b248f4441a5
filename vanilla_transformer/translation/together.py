"""Lines in memory, translated by all the processes that a launcher started together."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from vanilla_transformer.translation.lines import Hypothesis, LineTranslator, Translation
from vanilla_transformer.translation.processes import OneProcess, SeveralProcesses

# Windows for each of several processes, so that none waits long for the one that ends last.
_WINDOWS_EACH = 4


def translate_together(
    translator: LineTranslator,
    lines: Sequence[str],
    processes: OneProcess | SeveralProcesses,
    progress: Callable[[int], object] = lambda count: None,
) -> list[Translation]:
    """The translations of all lines, in order; called by the main process, while the others `take_part`.

    Args:
        lines: The same in all processes.
        progress: Called with the number of lines done since the last call, by whichever process.
    """
    told = 0

    def tell(count: int) -> None:
        nonlocal told
        before, told = told, processes.count(count)
        progress(told - before)

    windows = _windows(translator, lines, processes)
    _work_off(translator, windows, processes, tell)
    translations: list[Translation] = []
    for number in range(len(windows)):
        while (handed_in := processes.collect(number)) is None:
            processes.wait()
            tell(0)
        translations.extend(map(_read, json.loads(handed_in)))
    tell(0)
    processes.leave(None)
    return translations


def take_part(translator: LineTranslator, lines: Sequence[str], processes: OneProcess | SeveralProcesses) -> None:
    """Translates for the main process, which calls `translate_together` with the same lines."""
    _work_off(translator, _windows(translator, lines, processes), processes, processes.count)
    processes.leave(None)


def _windows(
    translator: LineTranslator, lines: Sequence[str], processes: OneProcess | SeveralProcesses
) -> list[list[str]]:
    size = translator.window
    if processes.size > 1:
        size = max(1, min(size, math.ceil(len(lines) / (_WINDOWS_EACH * processes.size))))
    return [list(lines[start : start + size]) for start in range(0, len(lines), size)]


def _work_off(
    translator: LineTranslator,
    windows: list[list[str]],
    processes: OneProcess | SeveralProcesses,
    progress: Callable[[int], object],
) -> None:
    while (number := processes.claim()) < len(windows):
        found = translator.translate(windows[number], progress)
        processes.hand_in(number, json.dumps([asdict(translation) for translation in found]))


def _read(written: dict[str, Any]) -> Translation:
    hypotheses = tuple(Hypothesis(**hypothesis) for hypothesis in written["hypotheses"])
    return Translation(hypotheses, written["truncated"])
