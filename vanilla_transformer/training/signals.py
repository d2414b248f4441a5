"""What ends the loop before its last step: SIGTERM, SIGHUP and Ctrl-C, whose second ends it at once; or the time."""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

# Windows has no SIGHUP, which a closing terminal sends.
_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")


class StopRequest:
    """Remembers the first signal that asked to stop, 0 before that; tells when a step is the last one.

    Args:
        finish: A file that asks the run, by being there, to end with the model that it has.
        last_step_by: The end of the last step on the clock of `time.perf_counter`.
    """

    def __init__(self, finish: Path | None = None, last_step_by: float = math.inf) -> None:
        self.signal, self.finish, self.last_step_by = 0, finish, last_step_by

    def is_last_step(self) -> bool:
        """Tells whether the run ends with the step that is done, by its time or as somebody asked."""
        return self.is_late or (self.finish is not None and self.finish.exists())

    @property
    def is_late(self) -> bool:
        """Tells whether there is no time for another step."""
        return time.perf_counter() >= self.last_step_by

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Handles a signal; a second Ctrl-C ends the process without waiting.

        Another SIGTERM may be the launcher's beside that of a system that stops all processes.
        """
        if self.signal and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or signum


@contextmanager
def stop_on_signals(finish: Path | None = None, last_step_by: float = math.inf) -> Iterator[StopRequest]:
    """Lets SIGTERM, SIGHUP and Ctrl-C only be recorded in its body; afterwards restores their handlers.

    An ignored SIGHUP stays ignored, as under nohup.

    Outside the main thread Python allows no handlers, and signals keep their usual effect.
    """
    request = StopRequest(finish, last_step_by)
    previous = {}
    try:
        for signum in (getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)):
            if signum == signal.SIGINT or signal.getsignal(signum) is not signal.SIG_IGN:
                previous[signum] = signal.signal(signum, request)
    except ValueError:
        pass
    try:
        yield request
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
