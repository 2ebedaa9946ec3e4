"""The connections of the HTTP server: their event loop, and what is refused before a request is complete.

waitress asks every connection before each wait whether it wants to read or write, so each event costs more the more
connections there are. Here the kernel keeps that list, and only connections with an event or a request are asked.
"""

from __future__ import annotations

import hmac
import logging
import os
import selectors
import threading
import time
from collections import deque
from typing import Any

from typing_extensions import override

from lightning_ding.distributed.flask_fs import NEEDS_FLASK

try:
    from waitress import wasyncore
    from waitress.channel import HTTPChannel
    from waitress.parser import HTTPRequestParser
    from waitress.task import ErrorTask, WSGITask
    from waitress.utilities import Error
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(NEEDS_FLASK, name=error.name) from error

CONNECTIONS = 8192
"""Most connections at a time; a worker has two."""
RESERVED_FILES = 256
"""File descriptors that connections leave for files."""
REQUEST_TIMEOUT = 30.0
"""Seconds for a request to arrive completely, and for the first request of a connection."""
CHECK = 1.0  # seconds between two looks at all connections

logger = logging.getLogger(__name__)


class SparseLog:
    """Logs at most one line of each kind in an interval, so that a flood of requests does not fill the disk.

    Args:
        log: Logger for the lines.
        seconds: Length of the interval, > 0.
    """

    def __init__(self, log: logging.Logger, seconds: float = 1.0) -> None:
        self._logger = log
        self._seconds = seconds
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def write(self, level: int, kind: str, text: str, *arguments: Any) -> None:
        """Log a line, unless there was one of the same kind in this interval.

        Args:
            level: Level of the line.
            kind: Kind of the line; there must be few kinds.
            text: Format of the line.
            arguments: Arguments of the format.
        """
        now = time.monotonic()
        with self._lock:
            if now < self._next.get(kind, 0.0):
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                return
            self._next[kind] = now + self._seconds
            left_out = self._left_out.pop(kind, 0)
        if left_out:
            text, arguments = f"{text} (and %d similar ones before)", (*arguments, left_out)
        logger = self._logger
        logger.log(level, text, *arguments)

    def warning(self, text: str, *arguments: Any) -> None:
        """Log a warning, unless there was one in this interval."""
        self.write(logging.WARNING, text, text, *arguments)


class UnauthorisedError(Error):  # type: ignore[misc]
    """The answer to a request without the token."""

    code = 401
    reason = "Unauthorized"


class EventLoop:
    """Reads and writes the connections of a waitress server until it is closed.

    The cost of an event does not depend on the number of connections. Once a second, all connections are looked at:
    those without a complete request for ``REQUEST_TIMEOUT`` seconds are closed. If there are as many connections as
    allowed, all that have not sent a request with the token yet are closed, so that workers can connect.

    Args:
        server: The server, whose map of sockets is used.
    """

    def __init__(self, server: Any) -> None:
        self._server = server
        self._map: Any = server._map  # channels by descriptor
        self._selector = selectors.DefaultSelector()
        self._registered: dict[int, tuple[Any, int]] = {}  # channel and events of each descriptor in the selector
        self._active: set[int] = set()  # descriptors whose events may have changed
        self._served = server.served = deque()  # descriptors of connections whose requests threads have begun to answer
        self._next_check = 0.0

    def run(self) -> None:
        """Handle events until the server's map is empty.

        After an error, for example of the kernel, this process ends, because it would never answer again.
        """
        try:
            with self._selector:
                self._serve()
        except Exception as error:
            logger.critical("the HTTP server failed, so this process ends: %r", error)
            _end_process()

    def _serve(self) -> None:
        while self._map:
            self._review()
            for key, events in self._selector.select(CHECK):
                self._handle(key.fd, events)

    def _handle(self, descriptor: int, events: int) -> None:
        self._active.add(descriptor)
        channel = self._map.get(descriptor)
        if channel is None:
            return
        if events & selectors.EVENT_READ:
            wasyncore.read(channel)
        if events & selectors.EVENT_WRITE and self._map.get(descriptor) is channel:
            wasyncore.write(channel)
        if channel.accepting:
            self._active.update(self._map.keys() - self._registered.keys())

    def _review(self) -> None:
        """Tell the selector what the connections wait for that may wait for something else than before."""
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + CHECK
            self._close_incomplete()
            self._active.update(list(self._map), list(self._registered))
        while self._served:
            self._active.add(self._served.popleft())
        self._active = {descriptor for descriptor in self._active if self._update(descriptor)}

    def _update(self, descriptor: int) -> bool:
        """Return whether another thread may soon change what a connection waits for."""
        channel = self._map.get(descriptor)
        is_answering = getattr(channel, "is_served", False)  # before its flags, which its thread changes first
        wanted = 0 if channel is None else _events(channel)
        known, registered = self._registered.get(descriptor, (channel, 0))
        if known is not channel and registered:  # the descriptor belongs to another connection now
            self._selector.unregister(descriptor)
            registered = 0
        if wanted and registered:
            if wanted != registered:
                self._selector.modify(descriptor, wanted)
        elif wanted:
            self._selector.register(descriptor, wanted)
        elif registered:
            self._selector.unregister(descriptor)
        if channel is None:
            self._registered.pop(descriptor, None)
        else:
            self._registered[descriptor] = (channel, wanted)
        return is_answering

    def _close_incomplete(self) -> None:
        now = time.monotonic()
        is_full = len(self._map) >= self._server.adj.connection_limit
        for channel in list(self._map.values()):
            if isinstance(channel, Connection):
                waits = channel.waits_since
                is_late = waits is not None and now - waits > REQUEST_TIMEOUT
                is_in_the_way = is_full and not channel.is_known and now - channel.opened_at > CHECK
                channel.will_close |= is_late or is_in_the_way


class Connection(HTTPChannel):  # type: ignore[misc]
    """A connection whose answers are all JSON, and that is closed at a request without the token."""

    is_known = False
    """Whether it has sent a request with the token."""
    is_served = False
    """Whether a thread is answering its request."""
    head = b""
    """Headers of an answer, which are sent together with its body."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.opened_at = time.monotonic()
        self.waits_since: float | None = self.opened_at
        """Time since which a request is incomplete; None if there is none after the first one."""
        super().__init__(*arguments, **options)

    @override
    def received(self, data: bytes) -> bool:
        before = self.request
        is_open: bool = super().received(data)
        if self.request is None:
            self.waits_since = None
        elif self.request is not before:
            self.waits_since = time.monotonic()
        return is_open

    @override
    def service(self) -> None:
        self.is_known |= self.requests[0].error is None
        self.is_served = True
        self.server.served.append(self._fileno)
        try:
            self.server.task_dispatcher.serve(self, super().service)
        finally:
            self.is_served = False

    @override
    def write_soon(self, data: bytes) -> int:
        if data and self.head:
            data, self.head = self.head + data, b""
        return int(super().write_soon(data))


class WholeAnswer(WSGITask):  # type: ignore[misc]
    """Sends headers and body of an answer with one system call."""

    @override
    def build_response_header(self) -> bytes:
        self.channel.head = super().build_response_header()
        return b""

    @override
    def finish(self) -> None:
        super().finish()
        head, self.channel.head = self.channel.head, b""
        if head:  # there was no body
            self.channel.write_soon(head)


def connection_class(token: str | None, error_task: type[ErrorTask]) -> type[Connection]:
    """Return the class of connections that refuse requests without a token as soon as their headers are there.

    Without this check, a client without the token could fill the memory of the server and occupy its threads.

    Args:
        token: The token; None accepts every request.
        error_task: Task that answers refused requests.
    """

    class Parser(HTTPRequestParser):  # type: ignore[misc]
        is_checked = False
        error: Error | None

        @override
        def received(self, data: bytes) -> int:
            consumed: int = super().received(data)
            if self.headers_finished and not self.is_checked:
                self.is_checked = True
                given = self.headers.get("AUTHORIZATION")
                if self.error is None and not self.empty and not is_authorised(given, token):
                    self.error, self.completed = UnauthorisedError("missing or wrong token"), True
                    self.expect_continue = False
            return consumed

    class Guarded(Connection):
        parser_class = Parser
        task_class = WholeAnswer
        error_task_class = error_task

    return Guarded


def is_authorised(header: str | None, token: str | None) -> bool:
    """Return whether a request may be answered, in a time that does not depend on how much of the token is right.

    Args:
        header: Content of the header ``Authorization``.
        token: The token; None accepts every request.
    """
    return token is None or hmac.compare_digest((header or "").encode(), f"Bearer {token}".encode())


def allowed_connections() -> int:
    """Return the number of connections for which this process may open files, after raising its limit if possible."""
    import resource  # not available on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CONNECTIONS + RESERVED_FILES
    if hard == resource.RLIM_INFINITY:
        hard = needed
    if soft != resource.RLIM_INFINITY and soft < needed and soft < hard:
        soft = min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    limit = needed if soft == resource.RLIM_INFINITY else min(needed, soft)
    allowed = max(limit - RESERVED_FILES, limit // 2)
    if allowed < CONNECTIONS:
        logger.info("at most %d connections, because this process may open %d files (ulimit -n)", allowed, limit)
    return allowed


def _end_process() -> None:
    os._exit(1)


def _events(channel: Any) -> int:
    events = selectors.EVENT_READ if channel.readable() else 0
    if channel.writable() and not channel.accepting:
        events |= selectors.EVENT_WRITE
    return events
