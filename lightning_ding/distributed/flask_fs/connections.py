"""The connections of the HTTP server: how many there may be, which are closed, and how refusals are logged."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from typing_extensions import override

try:
    from aiohttp import web as web
    from aiohttp.http_exceptions import LineTooLong
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("flask_fs needs aiohttp: pip install lightning_ding[flask]", name=error.name) from error

logger = logging.getLogger(__name__)

CONNECTIONS = 8192
"""Most connections at a time; a worker has two."""
RESERVED_FILES = 256
"""File descriptors that connections leave for files."""
REQUEST_TIMEOUT = 30.0
"""Seconds for a request to arrive completely, and for the first request of a connection."""
HEADER_BYTES = 16_384
ACCEPT_PAUSE = 1.0  # seconds until connections are accepted again after an error
LINGER = 2.0  # seconds in which the rest of a refused request is read and dropped, so that its sender gets the answer


class SparseLog:
    """Logs at most one line of each kind in an interval, so that a flood of requests does not fill the disk.

    Args:
        log: Logger for the lines.
        seconds: Length of the interval, > 0.
    """

    def __init__(self, log: logging.Logger, seconds: float = 1.0) -> None:
        self._logger = log
        self._seconds = seconds
        self._last: dict[str, tuple[float, int]] = {}  # time of the last line of each kind, and lines left out since

    def write(self, level: int, kind: str, text: str, *arguments: Any, exc_info: BaseException | None = None) -> None:
        """Log a line, unless there was one of the same kind in this interval; there must be few kinds."""
        now = time.monotonic()
        logged_at, left_out = self._last.get(kind, (-math.inf, 0))
        if now < logged_at + self._seconds:
            self._last[kind] = logged_at, left_out + 1
            return
        self._last[kind] = now, 0
        if left_out:
            text, arguments = f"{text} (and %d similar ones before)", (*arguments, left_out)
        self._logger.log(level, text, *arguments, exc_info=exc_info)


class Connection(web.RequestHandler):
    """A connection to the server, with the time since which it waits for the rest of a request."""

    def __init__(self, server: Connections) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=1e9,  # workers may send heartbeats as rarely as they like
            access_log=None,  # type: ignore[arg-type]
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
            lingering_time=LINGER,
            auto_decompress=False,
        )
        self._server = server
        self.waits_since: float | None = time.monotonic()
        """Time since which a request is incomplete; None if there is none after the first one."""

    @override
    def data_received(self, data: bytes) -> None:
        if self.waits_since is None:
            self.waits_since = time.monotonic()
        super().data_received(data)

    @override
    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        status = 431 if isinstance(exc, LineTooLong) else status
        return self._server.refuse(request, status, message or "this is not a request over HTTP")


class Connections(web.Server):
    """The open connections.

    If there are as many as allowed, the oldest one without a valid request makes room for a new one.

    Args:
        answer: Answers a request.
        refuse: Returns the answer to a request that is malformed: from the request, a status and a reason.
        limit: Most connections at a time.
    """

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        refuse: Callable[[web.BaseRequest, int, str], web.StreamResponse],
        limit: int,
    ) -> None:
        super().__init__(answer, handler_cancellation=True)
        self.refuse = refuse
        self._limit = limit
        self._unknown: dict[Connection, None] = {}  # connections without a valid request so far, the oldest first

    @override
    def __call__(self) -> Connection:
        return Connection(self)

    @override
    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._unknown[handler] = None
        if len(self.connections) > self._limit:
            oldest = next(iter(self._unknown))
            del self._unknown[oldest]
            oldest.force_close()

    @override
    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        self._unknown.pop(handler, None)
        super().connection_lost(handler, exc)

    def note_valid(self, connection: Any) -> None:
        """Note that a valid request of a connection has arrived completely."""
        connection.waits_since = None
        self._unknown.pop(connection, None)

    def close_incomplete(self) -> None:
        """Close the connections whose request is incomplete for too long."""
        oldest = time.monotonic() - REQUEST_TIMEOUT
        for connection in self.connections:
            if isinstance(connection, Connection) and (connection.waits_since or math.inf) < oldest:
                connection.force_close()


class Handshakes:
    """Accepts connections over TLS, and counts those whose handshake has not ended, too.

    If there are as many as allowed, the oldest one whose handshake has not ended makes room for a new one.

    Args:
        connections: Connections whose handshake has ended.
        tls: Certificate and key.
        limit: Most connections at a time, of both kinds.
    """

    def __init__(self, connections: Connections, tls: ssl.SSLContext, limit: int) -> None:
        self._connections, self._tls, self._limit = connections, tls, limit
        self._unfinished: dict[asyncio.Task[None], socket.socket] = {}  # the oldest first

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections until this task is cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:  # for example, the process has too many files
                logger.warning("a connection cannot be accepted: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            task = loop.create_task(self._shake_hands(accepted))
            self._unfinished[task] = accepted
            task.add_done_callback(lambda task: self._unfinished.pop(task, None))
            if len(self._unfinished) + len(self._connections.connections) > self._limit:
                oldest = self._unfinished.pop(next(iter(self._unfinished)))
                with suppress(OSError):  # its client has left
                    oldest.shutdown(socket.SHUT_RDWR)  # ends the handshake, and so closes it
            await asyncio.sleep(0)  # otherwise a flood of connections would stop the others

    async def _shake_hands(self, accepted: socket.socket) -> None:
        options: Any = {"ssl": self._tls, "ssl_handshake_timeout": REQUEST_TIMEOUT}
        with suppress(OSError):  # also of ssl
            await asyncio.get_running_loop().connect_accepted_socket(self._connections, accepted, **options)


def allowed_connections() -> int:
    """Return the number of connections for which this process may open files, after raising its limit if possible."""
    import resource  # not available on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, unlimited = CONNECTIONS + RESERVED_FILES, resource.RLIM_INFINITY
    if soft != unlimited and soft < needed:
        soft = needed if hard == unlimited else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limit = needed if soft == unlimited else min(needed, soft)
    return max(limit - RESERVED_FILES, limit // 2)
