"""Work done in the background."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Background(Generic[Result]):
    """Work that a thread does in the background; a process that ends does not wait for it."""

    def __init__(self, work: Callable[[], Result], name: str) -> None:
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Result]) -> None:
        try:
            self._results.append(work())
        except BaseException as error:
            self._error = error

    def result(self) -> Result:
        """Waits for the work to end, and returns its result or raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]
