"""The HTTP server of a coordinator: aiohttp in one thread, which passes messages to a few others that answer them.

It takes ``POST /<name>`` with a JSON object from a sender that has the token, and refuses everything else.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import re
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.flask_fs import CHANNEL_HEADER, MARK_HEADER
from lightning_ding.distributed.flask_fs.auth import callable_name, is_authorised
from lightning_ding.distributed.flask_fs.connections import Connections, Handshakes, SparseLog, allowed_connections, web
from lightning_ding.distributed.messages import parse_message
from lightning_ding.distributed.transport import DATA, HEARTBEAT, Handler, Message, Refusal, Server

BACKLOG = 4096
"""Connections that the kernel accepts before the server does."""
CHECK = 1.0  # seconds between two looks at all connections
CLOSE_TIMEOUT = 5.0  # seconds
NAME = re.compile(r"/[a-z_]{1,64}")
THREADS = {HEARTBEAT: 1, DATA: 4}
"""Threads that only answer messages of one name, so that heartbeats never wait while data wait for a snapshot.

More threads for data would only take the interpreter's lock from each other; fewer would wait for a slow disk.
"""
OTHER_THREADS = 16
"""Threads for all other messages; a request for a task can occupy one for up to a second."""

logger = logging.getLogger(__name__)
_refusals = SparseLog(logger)


class FlaskServer(Server):
    """Receives messages and passes them to a handler.

    One thread receives all requests, checks their senders and sends the answers. A few others call the handler. The
    server listens from construction on, so that ``port`` is known, and answers from ``start`` on.

    Every answer is ``{success, code, message, data}``: ``code`` is the HTTP status, ``message`` an explanation. Token
    and channel are checked for every method and path, before the body is read. A web page cannot make a browser send
    messages: the browser would need permission to send JSON, and requests with an ``Origin`` are refused. Errors of
    ``handler`` other than ``Refusal`` are logged and become a 500.

    Args:
        handler: Answers the messages, such as ``Coordinator.handle``.
        host: Address to listen at.
        port: Port to listen at; 0 means any free port.
        token: Token in the ``Authorization: Bearer <token>`` of every message; None accepts messages without one.
        channel: Channel number in the ``X-Lightning-Ding-Channel`` of every message.
        max_message: Maximum size of a message in bytes; a larger one is refused before it is read.
        mark: Mark of the folder of the run, with which workers check that they share the folder; None for no check.
        tls: Certificate and key for HTTPS; None for HTTP, which sends the token without encryption.

    Raises:
        ValueError: If ``host`` can be reached from other machines and there is no token, or it is not an address.
        OSError: If the address is in use or does not belong to this machine.
    """

    def __init__(
        self,
        handler: Handler,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        channel: int = 0,
        max_message: int = 1_000_000,
        mark: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        family, address = _resolve(host, port)
        is_guarded = token is not None or ipaddress.ip_address(address[0].partition("%")[0]).is_loopback
        allowed = "a loopback address unless there is a token (token_file or LIGHTNING_DING_TOKEN)"
        require(is_guarded, "host", allowed, host)
        require(token is None or len(token) > 0, "token", "None or a non-empty text", token)
        self._handler, self._token, self._channel, self._max_message = handler, token, str(channel), max_message
        self._headers = {} if mark is None else {MARK_HEADER: mark}
        self._tls = tls
        self.unanswered = 0
        """Number of requests that were received and not answered yet."""
        self._listener = _listen(family, address)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._pools = {name: ThreadPoolExecutor(threads, name) for name, threads in THREADS.items()}
        self._others = ThreadPoolExecutor(OTHER_THREADS, "message")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_running, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="flask_fs server", daemon=True)
        self._is_closed = False

    @property
    def address(self) -> dict[str, Any]:  # type: ignore[override]
        """Host and port by which workers can call this server."""
        return {"host": callable_name(self.host), "port": self.port}

    @override
    def start(self) -> None:
        self._thread.start()

    @override
    def close(self) -> None:
        """Finish the messages that are being answered, for up to 5 s, and stop; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread.is_alive() and self._is_running.wait(CLOSE_TIMEOUT) and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(2 * CLOSE_TIMEOUT)
        self._listener.close()
        for pool in (*self._pools.values(), self._others):
            pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        """Receive requests until :meth:`close`.

        After an error, for example of the kernel, this process ends, because it would never answer again.
        """
        try:
            asyncio.run(self._serve())
        except Exception as error:
            logger.critical("the HTTP server failed, so this process ends: %r", error)
            _end_process()

    async def _serve(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(_note_broken)
        limit = allowed_connections()
        self.connections = Connections(self._answer, _error, limit)
        accepting: asyncio.Task[None] | asyncio.Server
        if self._tls is None:
            accepting = await loop.create_server(self.connections, sock=self._listener, backlog=BACKLOG)
        else:
            accepting = loop.create_task(Handshakes(self.connections, self._tls, limit).accept(self._listener))
        self._is_running.set()
        while not self._stop.is_set():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), CHECK)
            self.connections.close_incomplete()
            if isinstance(accepting, asyncio.Task) and accepting.done():
                accepting.result()  # raises why it has ended
        if isinstance(accepting, asyncio.Task):
            accepting.cancel()
        else:
            accepting.close()
        self.connections.pre_shutdown()
        await self.connections.shutdown(CLOSE_TIMEOUT)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.unanswered += 1
        name = ""
        try:
            name = self._check(request)
            body = await self._read(request)
            self.connections.note_valid(request.protocol)
            pool = self._pools.get(name, self._others)
            content = await asyncio.get_running_loop().run_in_executor(pool, self._handle, name, body)
            return _response(200, content, self._headers)
        except Refusal as refusal:
            return _refused(request, refusal)
        except web.RequestPayloadError as error:
            return _error(request, 400, f"the body is malformed: {error}")
        except Exception as error:
            kind, path = type(error).__name__, request.raw_path[:100]
            _refusals.write(logging.ERROR, f"{name} {kind}", "the message %r failed", path, exc_info=error)
            reason = f"{kind} in the coordinator; see its log"
            return _response(500, _content(500, reason))
        finally:
            self.unanswered -= 1

    def _check(self, request: web.BaseRequest) -> str:
        """Return the name of a message after checking its sender and its form, before its body arrives."""
        headers, path = request.headers, request.raw_path.partition("?")[0]
        if (request.content_length or 0) > self._max_message:
            raise Refusal(413, f"a message must have at most {self._max_message} bytes")
        if not is_authorised(headers.get("Authorization"), self._token):
            raise Refusal(401, "missing or wrong token")
        if "Origin" in headers:
            raise Refusal(403, "messages from web pages are refused")
        if (given := headers.get(CHANNEL_HEADER, "")) != self._channel:
            raise Refusal(403, f"the channel must be {self._channel}, got {given[:20]!r}")
        if not NAME.fullmatch(path):
            raise Refusal(404, "there is no message of this name")
        if request.method != "POST":
            raise Refusal(405, f"a message must be sent with POST, got {request.method[:20]}")
        if request.content_type != "application/json":
            raise Refusal(415, f"the content type must be application/json, got {request.content_type[:100]!r}")
        return path[1:]

    async def _read(self, request: web.BaseRequest) -> bytes:
        """Return the body of a request, which may come in chunks without a known length."""
        parts, size = [], 0
        async for part in request.content.iter_any():
            size += len(part)
            if size > self._max_message:
                raise Refusal(413, f"a message must have at most {self._max_message} bytes")
            parts.append(part)
        return b"".join(parts)

    def _handle(self, name: str, body: bytes) -> bytes:
        return _content(200, "", self._handler(name, parse_message(body)))


def _content(status: int, reason: str, data: Message | None = None) -> bytes:
    """Return the JSON of an answer, which can hold finite numbers only."""
    content = {"success": status == 200, "code": status, "message": reason[:500], "data": data or {}}
    return json.dumps(content, allow_nan=False).encode()


def _response(status: int, content: bytes, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=content, status=status, headers=headers, content_type="application/json")


def _refused(request: web.BaseRequest, refusal: Refusal) -> web.Response:
    level = logging.WARNING if refusal.status in (401, 403) else logging.INFO
    about = (request.raw_path[:100], request.remote, refusal)
    _refusals.write(level, str(refusal.status), "refused %r of %s: %s", *about)
    response = _response(refusal.status, _content(refusal.status, refusal.reason))
    if refusal.status == 401:
        response.force_close()
    return response


def _error(request: web.BaseRequest, status: int, reason: str) -> web.Response:
    """Return the answer to a request that is not HTTP."""
    response = _refused(request, Refusal(status, reason))
    response.force_close()
    return response


def _note_broken(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log the failure of a connection, for example of its TLS handshake."""
    _refusals.write(logging.INFO, "broken", "%s: %r", context["message"], context.get("exception"))


def _end_process() -> None:
    os._exit(1)


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Return the one address to check and to listen at, since a name could later resolve to another one."""
    require(bool(host), "host", "an address of this machine", host)
    require(0 <= port < 65536, "port", "in [0, 65535]", port)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"host must be an address of this machine, got {host!r}: {error}") from error
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address


def _listen(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # lets a restarted coordinator use its port at once
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen at {address[0]} port {address[1]}: {error.strerror}") from error
    return listener
