"""SIGTERM, SIGHUP and Ctrl-C: asked once, the loop leaves at the next step; asked twice, at once.

A checkpoint that is just being written is finished either way.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Windows has no SIGHUP, which a terminal sends that is closed.
_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")


class StopRequest:
    """Remembers the first signal that asked for an end; 0 while none has."""

    def __init__(self) -> None:
        self.signal = 0

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Handles a signal; the second is for somebody who does not want to wait."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = signum


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within it SIGTERM, SIGHUP and Ctrl-C only make a note; afterwards they do what they did before.

    SIGHUP stays without effect where it has none, as under nohup.

    Outside the main thread Python allows no handlers, and signals go their usual way.
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
