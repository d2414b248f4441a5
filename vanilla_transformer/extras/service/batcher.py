"""Single lines from several threads, translated together, for a service that answers one request at a time."""

import contextlib
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any

from vanilla_transformer.translation.lines import Translation, translator_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from vanilla_transformer.translation.exported import ExportedModel

# Factor on `patience` that limits how long a line waits for others.
_LONGEST_WAIT = 10


class Batcher:
    """Translates one line per call, together with those of other threads that arrive within a few milliseconds.

    The translations equal those of single calls, up to the rounding of a batch. A line that fails raises only in its
    own call. Use it in a `with`, or call `close`: until then the model's weights are held fixed (`frozen`).

    Args:
        model: A model, exported or not.
        tokenizer: The model's tokenizer; None for an exported model.
        max_lines: Maximum number of lines translated together.
        patience: Seconds without a new line after which the lines so far are translated; a line waits at most ten
            times as long for others.
        settings: Settings of `translate_lines`, such as `num_beams` or `scores`.
    """

    def __init__(
        self,
        model: "PreTrainedModel | ExportedModel",
        tokenizer: "PreTrainedTokenizerBase | None",
        *,
        max_lines: int = 32,
        patience: float = 0.0005,
        **settings: Any,
    ) -> None:
        if max_lines < 1:
            raise ValueError(f"max_lines must be at least 1, not {max_lines}.")
        self._translator = translator_of(model, tokenizer, **settings)
        self._max_lines, self._patience = max_lines, patience
        self._waiting: queue.SimpleQueue[tuple[str, Future[Translation]]] = queue.SimpleQueue()
        self._closing, self._closed = threading.Lock(), False
        self._held = contextlib.ExitStack()
        self._held.enter_context(getattr(model, "frozen", contextlib.nullcontext)())
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="Batcher")

    def __call__(self, line: str) -> Translation:
        """Returns the translation of a line once it is done.

        Raises:
            RuntimeError: The batcher is closed.
        """
        if not isinstance(line, str):
            raise TypeError(f"A Batcher takes one line per call, as a str, not a {type(line).__name__}.")
        answer: Future[Translation] = Future()
        with self._closing:
            if self._closed:
                raise RuntimeError("This Batcher is closed: create another.")
            self._waiting.put((line, answer))
            self._executor.submit(self._translate_waiting)
        return answer.result()

    def close(self) -> None:
        """Waits for the lines already submitted, and accepts no more."""
        with self._closing:
            self._closed = True
        self._executor.shutdown()
        self._held.close()

    def __enter__(self) -> "Batcher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _translate_waiting(self) -> None:
        """Translates the waiting lines, unless an earlier turn has done so, with those that arrive in time."""
        gathered: list[tuple[str, Future[Translation]]] = []
        until = time.monotonic() + _LONGEST_WAIT * self._patience
        try:
            gathered.append(self._waiting.get_nowait())
            while len(gathered) < self._max_lines:
                left = max(0.0, until - time.monotonic())
                gathered.append(self._waiting.get(timeout=min(self._patience, left)))
        except queue.Empty:
            pass
        if gathered:
            self._answer(gathered)

    def _answer(self, gathered: list[tuple[str, "Future[Translation]"]]) -> None:
        try:
            translations = self._translator.translate([line for line, _ in gathered])
        except Exception as error:
            if len(gathered) == 1:
                gathered[0][1].set_exception(error)
                return
            for one in gathered:
                self._answer([one])
            return
        for (_, answer), translation in zip(gathered, translations, strict=True):
            answer.set_result(translation)
