"""SIGTERM, SIGHUP and Ctrl-C: the first request ends the loop at the next step; a second Ctrl-C ends it at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Windows has no SIGHUP, which a closing terminal sends.
_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")


class StopRequest:
    """Remembers the first signal that asked to stop; 0 before that."""

    def __init__(self) -> None:
        self.signal = 0

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Handles a signal; a second Ctrl-C ends the process without waiting.

        Another SIGTERM may be the launcher's beside that of a system that stops all processes.
        """
        if self.signal and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or signum


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Lets SIGTERM, SIGHUP and Ctrl-C only be recorded in its body; afterwards restores their handlers.

    An ignored SIGHUP stays ignored, as under nohup.

    Outside the main thread Python allows no handlers, and signals keep their usual effect.
    """
    request = StopRequest()
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
