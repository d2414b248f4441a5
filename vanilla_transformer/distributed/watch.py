"""Processes of one run that stand and fall together: each hears within seconds that another has died, and of what.

An operation that all processes take part in waits for a dead one: on accelerators for as long as it is allowed to,
which must be long, because the main process prepares the corpus while the others wait. So each process keeps a
connection to the main one. The system closes it however a process ends, and the main one tells the others.
"""

import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

# With the connections in place nothing else needs a limit.
LONGEST_WAIT = timedelta(hours=12)
SECONDS_TO_CONNECT = 20.0
# A machine that is gone says nothing: after 15 s of silence it is asked every 5 s, four times.
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
# So long the main process waits for a better reason than the first it hears; where it fails itself, for those that
# know already and are leaving.
_SECONDS_FOR_REASONS, _SECONDS_TO_LEAVE = 1.0, 3.0
_SECONDS_FOR_AN_ANSWER = 20.0
# Better reasons first: who just disappeared, who failed by itself, and who failed because another did not answer.
_KILLED, _FAILED, _UNANSWERED = range(3)


@contextmanager
def standing_together(accelerator: Accelerator, note: Callable[[str], object]) -> Iterator[None]:
    """Within it the end of a process, unless it leaves the block, ends all others within seconds, with exit code 1.

    Each of them says which process it was and why; the main one notes it as well.
    """
    if accelerator.num_processes == 1:
        yield
        return
    link = _link(accelerator, note)
    torch.distributed.distributed_c10d._set_pg_timeout(LONGEST_WAIT)
    try:
        yield
    except SystemExit:
        link.leave()
        raise
    except BaseException as error:
        if link.is_to_blame(_UNANSWERED if _comes_from_others(error) else _FAILED, _reason(error)):
            raise
        raise SystemExit(1) from None
    link.leave()


def _link(accelerator: Accelerator, note: Callable[[str], object]) -> "_Main | _Other":
    """Connects the processes."""
    me = _Process(accelerator.process_index, accelerator.num_processes, socket.gethostname(), os.getpid())
    if accelerator.is_main_process:
        server = _listen()
        token = secrets.token_hex(16)
        broadcast_object_list([(server.getsockname()[1], token, me)])
        return _Main(me, server, token, note)
    port, token, main = broadcast_object_list([None])[0]
    return _Other(me, main, (os.environ.get("MASTER_ADDR", "127.0.0.1"), port), token)


def _listen() -> socket.socket:
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # The system knows IPv6 and has no address of it.
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", 0), backlog=1024)


@dataclass(frozen=True)
class _Process:
    """A process of the run, as it is named to the user."""

    number: int
    processes: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"Process {self.number} of {self.processes} (on {self.host}, pid {self.pid})"


def _reason(error: BaseException) -> str:
    sentence = " ".join(str(error).split()) or type(error).__name__
    return f"failed: {sentence.rstrip('.')}" if isinstance(error, Exception) else "was interrupted"


def _comes_from_others(error: BaseException | None) -> bool:
    """Whether an error says that other processes did not answer, itself or by what led to it."""
    while error is not None:
        words = str(error).lower()
        if isinstance(error, torch.distributed.DistError):
            return True
        if isinstance(error, RuntimeError) and any(name in words for name in ("gloo", "nccl", "connection")):
            return True
        error = error.__cause__ or error.__context__
    return False


class _Link(threading.Thread):
    """This process's side of the connections: hears of the end of others, and tells of its own."""

    def __init__(self, me: _Process) -> None:
        super().__init__(name="watch", daemon=True)
        self.me = me
        self._lock = threading.Lock()
        self._failing, self._judged = False, threading.Event()
        self._blamed: int | None = None

    def is_to_blame(self, kind: int, reason: str) -> bool:
        """Tells that this process fails; False if another one is the reason, which has been said by then."""
        with self._lock:
            self._failing = True
        self._tell_failure(kind, reason)
        self._judged.wait(_SECONDS_FOR_AN_ANSWER)
        return self._blamed in (None, self.me.number)

    def leave(self) -> None:
        """Parts from the others, whose end no longer matters, as this one's does not matter to them."""
        raise NotImplementedError

    def _tell_failure(self, kind: int, reason: str) -> None:
        raise NotImplementedError

    def _judge(self, number: int, sentence: str) -> None:
        """Ends this process because of the one to blame, or lets it end by itself if it is about to."""
        if number != self.me.number:
            end = f"{sentence}; process {self.me.number} ends too. The same command goes on from the last checkpoint."
            print(f"\n{end}" if sys.stderr.isatty() else end, file=sys.stderr, flush=True)
        with self._lock:
            self._blamed = number
            self._judged.set()
            if self._failing or number == self.me.number:
                return
        sys.stdout.flush()
        # The main thread may be waiting in an operation that never ends.
        os._exit(1)


class _Other(_Link):
    """Any process but the main one."""

    def __init__(self, me: _Process, main: _Process, address: tuple[str, int], token: str) -> None:
        super().__init__(me)
        self._main, self._left = main, False
        self._connection: socket.socket | None = None
        try:
            connection = socket.create_connection(address, SECONDS_TO_CONNECT)
        except OSError as error:
            print(
                f"Process {me.number} cannot reach port {address[1]} of {address[0]} ({error}): if another process "
                "dies, this one may wait for it for hours.",
                file=sys.stderr,
            )
            return
        connection.settimeout(None)
        _keep_alive(connection)
        self._connection = connection
        self._send({"token": token, "process": vars(me)})
        self.start()

    def run(self) -> None:
        """Hears from the main process until one of the two leaves."""
        assert self._connection is not None
        with suppress(OSError), self._connection.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                message = json.loads(line)
                if "left" in message:
                    return
                self._judge(message["number"], message["sentence"])
        if not self._left:
            self._judge(self._main.number, f"{self._main} {_WITHOUT_A_WORD}")

    def leave(self) -> None:
        """Parts from the others."""
        self._left = True
        self._send({"left": True})

    def _tell_failure(self, kind: int, reason: str) -> None:
        if self._connection is None or not self._send({"kind": kind, "reason": reason}):
            self._judged.set()

    def _send(self, message: dict[str, Any]) -> bool:
        return self._connection is not None and _send(self._connection, message)


_WITHOUT_A_WORD = "ended without a word, as when it is killed or memory runs out"


@dataclass
class _Connection:
    """What the main process knows of another: who it is, once it has said so, and what it has said since."""

    socket: socket.socket
    process: _Process | None = None
    unread: bytes = b""


@dataclass(order=True)
class _Cause:
    """Why the run ends; the smallest is the one to tell."""

    kind: int
    moment: float
    process: _Process = field(compare=False)
    reason: str = field(compare=False)


class _Main(_Link):
    """The main process, which hears of every end and tells all."""

    def __init__(self, me: _Process, server: socket.socket, token: str, note: Callable[[str], object]) -> None:
        super().__init__(me)
        self._server, self._token, self._note = server, token, note
        self._connections: dict[socket.socket, _Connection] = {}
        self._causes: list[_Cause] = []
        self._deadline: float | None = None
        self._own: tuple[int, str] | None = None
        self._leaving = False
        self._bell, self._bell_button = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for readable in (self._server, self._bell):
            self._selector.register(readable, selectors.EVENT_READ)
        self.start()

    def run(self) -> None:
        """Hears from all others until this process leaves or the run ends."""
        with self._server:
            while not self._leaving:
                left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
                for key, _ in self._selector.select(left):
                    self._handle(key.fileobj)
                if self._deadline is not None and (time.monotonic() >= self._deadline or not self._connections):
                    self._tell(min(self._causes))
                    return
            for connection in self._connections:
                _send(connection, {"left": True})

    def leave(self) -> None:
        """Parts from the others."""
        self._leaving = True
        self._ring()
        self.join(_SECONDS_TO_LEAVE)

    def _tell_failure(self, kind: int, reason: str) -> None:
        self._own = (kind, reason)
        self._ring()

    def _ring(self) -> None:
        self._bell_button.send(b".")

    def _handle(self, readable: Any) -> None:
        if readable is self._server:
            connection, _ = self._server.accept()
            _keep_alive(connection)
            self._connections[connection] = _Connection(connection)
            self._selector.register(connection, selectors.EVENT_READ)
        elif readable is self._bell:
            self._bell.recv(16)
            if self._own is not None:
                self._blame(self.me, *self._own, seconds=_SECONDS_TO_LEAVE)
        else:
            self._read(self._connections[readable])

    def _read(self, connection: _Connection) -> None:
        try:
            received = connection.socket.recv(1 << 16)
        except OSError:  # The machine is gone.
            received = b""
        *lines, connection.unread = (connection.unread + received).split(b"\n")
        for line in lines:
            known = connection.process is not None or self._token.encode() in line
            message: dict[str, Any] = json.loads(line) if known else {"left": True}
            if "token" in message:
                connection.process = _Process(**message["process"])
            elif "left" in message:
                return self._drop(connection)
            elif connection.process is not None:
                self._blame(connection.process, message["kind"], message["reason"], seconds=_SECONDS_FOR_REASONS)
        if not received:
            if connection.process is not None:
                self._blame(connection.process, _KILLED, _WITHOUT_A_WORD, seconds=0.0)
            self._drop(connection)
        return None

    def _drop(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        del self._connections[connection.socket]
        connection.socket.close()

    def _blame(self, process: _Process, kind: int, reason: str, *, seconds: float) -> None:
        now = time.monotonic()
        self._causes.append(_Cause(kind, now, process, reason))
        self._deadline = now + seconds if self._deadline is None else min(self._deadline, now + seconds)

    def _tell(self, cause: _Cause) -> None:
        sentence = f"{cause.process} {cause.reason}"
        for connection in self._connections:
            _send(connection, {"number": cause.process.number, "sentence": sentence})
        if cause.process != self.me:
            with suppress(OSError):
                self._note(f"{sentence}.")
        self._judge(cause.process.number, sentence)


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _send(connection: socket.socket, message: dict[str, Any]) -> bool:
    with suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")
        return True
    return False
