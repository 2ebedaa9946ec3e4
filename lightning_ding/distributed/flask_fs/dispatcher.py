"""The order in which the threads of the HTTP server answer requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from lightning_ding.distributed.flask_fs import NEEDS_FLASK
from lightning_ding.distributed.transport import DATA, HEARTBEAT

try:
    from waitress.task import ThreadedTaskDispatcher
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(NEEDS_FLASK, name=error.name) from error

URGENT = f"/{HEARTBEAT}"
"""Path of the requests that are answered first, because workers without an answer lose their tasks."""
BLOCKING = f"/{DATA}"
"""Path of the requests that wait while a snapshot is written."""


class RequestQueue:
    """Connections with a request that no thread answers yet; must only be used with the dispatcher's lock.

    Heartbeats come first, and requests with data come last. Requests with data are only given to a thread while fewer
    than ``limit`` of them are being answered. If they all wait, for example for a snapshot of the buffer, threads are
    left for heartbeats and other requests.

    Args:
        limit: Requests with data that are answered at a time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._urgent: deque[Any] = deque()
        self._usual: deque[Any] = deque()
        self._blocking: deque[Any] = deque()
        self.num_blocking = 0
        """Requests with data that are being answered."""

    def __len__(self) -> int:
        return len(self._urgent) + len(self._usual) + len(self._blocking)

    def __bool__(self) -> bool:
        """Return whether a thread may take a request."""
        return bool(self._urgent or self._usual or (self._blocking and self.num_blocking < self._limit))

    def append(self, connection: Any) -> None:
        """Add a connection by the path of its request."""
        path = path_of(connection)
        queue = self._urgent if path == URGENT else self._blocking if path == BLOCKING else self._usual
        queue.append(connection)

    def popleft(self) -> Any:
        """Remove and return the connection whose request is to be answered next."""
        if self._urgent:
            return self._urgent.popleft()
        if self._usual:
            return self._usual.popleft()
        connection = self._blocking.popleft()
        self.num_blocking += 1
        return connection


class Dispatcher(ThreadedTaskDispatcher):  # type: ignore[misc]
    """Threads that answer requests in the order of a :class:`RequestQueue`.

    Args:
        threads: Requests that are answered at a time.
        limit: Requests with data that are answered at a time, < ``threads``.
    """

    def __init__(self, threads: int, limit: int) -> None:
        super().__init__()
        self.queue = RequestQueue(limit)
        self.set_thread_count(threads)

    def serve(self, connection: Any, answer: Callable[[], None]) -> None:
        """Answer the request of a connection in this thread.

        Args:
            connection: The connection.
            answer: Function that answers its request.
        """
        is_blocking = path_of(connection) == BLOCKING
        try:
            answer()
        finally:
            if is_blocking:
                with self.lock:
                    self.queue.num_blocking -= 1
                    self.queue_cv.notify()  # a thread may take the next one


def path_of(connection: Any) -> str:
    """Return the path of the request that a connection waits for; empty if the request is refused anyway."""
    request = connection.requests[0]
    return "" if request.error is not None else str(request.path)
