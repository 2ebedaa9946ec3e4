"""The HTTP server of a coordinator: Flask on waitress, in a thread of the coordinator's process.

It takes ``POST /<name>`` with a JSON object from a sender that has the token, and refuses everything else.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import math
import re
import socket
import threading
from typing import Any, NoReturn

from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.flask_fs import CHANNEL_HEADER, MARK_HEADER, NEEDS_FLASK
from lightning_ding.distributed.flask_fs.auth import callable_name
from lightning_ding.distributed.flask_fs.connections import (
    EventLoop,
    SparseLog,
    allowed_connections,
    connection_class,
    is_authorised,
)
from lightning_ding.distributed.flask_fs.dispatcher import Dispatcher
from lightning_ding.distributed.transport import ANSWERED_AT_ONCE, DATA_AT_ONCE, Handler, Message, Refusal, Server

try:
    from flask import Flask, Response, request
    from waitress import wasyncore
    from waitress.server import create_server
    from waitress.task import ErrorTask
    from werkzeug.exceptions import HTTPException
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(NEEDS_FLASK, name=error.name) from error

BACKLOG = 4096
"""Connections that the kernel accepts before the server does."""
HEADER_BYTES = 16_384
NAME = re.compile(r"[a-z_]{1,64}")
MAX_DEPTH = 32
"""Largest depth of nested lists and objects in a message."""

logger = logging.getLogger(__name__)
_refusals = SparseLog(logger)
_overload = SparseLog(logger, seconds=10.0)


class FlaskServer(Server):
    """Receives messages and passes them to a handler in many threads.

    It listens from construction on, so that ``port`` is known, and answers from ``start`` on. The token is sent without
    encryption: between machines, use a trusted network or a tunnel.

    Args:
        handler: Answers the messages, such as ``Coordinator.handle``.
        host: Address to listen at.
        port: Port to listen at; 0 means any free port.
        token: Token in the ``Authorization: Bearer <token>`` of every message; None accepts messages without one.
        channel: Channel number in the ``X-Lightning-Ding-Channel`` of every message.
        max_message: Maximum size of a message in bytes; a larger one is refused before it is read.
        mark: Mark of the folder of the run, with which workers check that they share the folder; None for no check.

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
    ) -> None:
        family, address = _resolve(host, port)
        is_guarded = token is not None or ipaddress.ip_address(address[0].partition("%")[0]).is_loopback
        allowed = "a loopback address unless there is a token (token_file or LIGHTNING_DING_TOKEN)"
        require(is_guarded, "host", allowed, host)
        require(token is None or len(token) > 0, "token", "None or a non-empty text", token)
        listener = _listen(family, address)
        self._server: Any = create_server(
            make_app(handler, token, channel, max_message, mark),
            sockets=[listener],
            _dispatcher=Dispatcher(ANSWERED_AT_ONCE, DATA_AT_ONCE),
            connection_limit=allowed_connections(),
            backlog=BACKLOG,
            max_request_header_size=HEADER_BYTES,
            max_request_body_size=max_message + 1,  # waitress also refuses a message of exactly this size
            channel_request_lookahead=1,  # the selector keeps a connection while its request is answered
            ident=None,
        )
        self._server.channel_class = connection_class(token, _ErrorAsJson)
        self._server.task_dispatcher.queue_logger = _overload
        loop = EventLoop(self._server)
        self._thread = threading.Thread(target=loop.run, name="flask_fs server", daemon=True)
        self.host = host
        self.port: int = listener.getsockname()[1]

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
        server, self._server = self._server, None
        if server is None:
            return
        server.task_dispatcher.shutdown()
        if self._thread.is_alive():
            server.trigger.pull_trigger(lambda: _stop_reading(server))  # in the thread that reads the sockets
            self._thread.join(timeout=5)
        else:
            _stop_reading(server)
        if not self._thread.is_alive():
            server.close()


def _stop_reading(server: Any) -> None:
    """Close the connections, and end the loop that reads them; the trigger stays open for who is about to pull it."""
    server.trigger.del_channel()
    server.del_channel()
    wasyncore.close_all(server._map)


class _ErrorAsJson(ErrorTask):  # type: ignore[misc]
    """Answers messages that waitress refuses, for example because of their size, in the form of all other answers."""

    @override
    def execute(self) -> None:
        error = self.request.error
        sender = self.channel.addr[0]
        _refusals.write(_level(error.code), str(error.code), "refused a request of %s: %s", sender, error.body)
        body = answer(error.code, f"{error.reason}: {error.body}")
        self.status = f"{error.code} {error.reason}"
        self.response_headers.append(("Content-Type", "application/json"))
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


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
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen at {address[0]} port {address[1]}: {error.strerror}") from error
    return listener


def make_app(handler: Handler, token: str | None, channel: int, max_message: int, mark: str | None = None) -> Flask:
    """Return the WSGI app that passes messages to ``handler``; the arguments are those of :class:`FlaskServer`.

    Every answer is ``{success, code, message, data}``: ``code`` is the HTTP status, ``message`` an explanation.
    Token and channel are checked for every method and path. A web page cannot make a browser send messages: the browser
    would need permission to send JSON, and requests with an ``Origin`` are refused. Errors of ``handler`` other than
    ``Refusal`` are logged and become a 500.
    """
    app = Flask(__name__, static_folder=None, template_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = max_message
    app.url_map.merge_slashes = False  # otherwise it would answer with a redirect

    @app.before_request
    def check_sender() -> None:
        _check_sender(token, channel)

    @app.route("/<name>", methods=["POST"], provide_automatic_options=False)
    def message(name: str) -> Response:
        if not NAME.fullmatch(name):
            raise Refusal(404, "there is no message of this name")
        if request.mimetype != "application/json":
            raise Refusal(415, f"the content type must be application/json, got {request.mimetype[:100]!r}")
        response = _response(200, "", handler(name, parse_message(request.get_data(cache=False))))
        if mark is not None:
            response.headers[MARK_HEADER] = mark
        return response

    app.register_error_handler(Refusal, _refused)
    app.register_error_handler(HTTPException, lambda error: _refused(Refusal(error.code or 400, str(error.name))))
    app.register_error_handler(Exception, _failed)
    return app


def answer(status: int, reason: str, data: Message | None = None) -> bytes:
    """Return the JSON of an answer.

    Raises:
        ValueError: If the data contains a non-finite number.
        TypeError: If the data contains a type that JSON does not have.
    """
    content = {"success": status == 200, "code": status, "message": reason[:500], "data": data or {}}
    return json.dumps(content, allow_nan=False).encode()


def parse_message(body: bytes) -> Message:
    """Return the JSON object in a body.

    Raises:
        Refusal: 400, if the body is not an object, is too deeply nested, or contains a non-finite number or an integer
            of more than 64 bits.
    """
    try:
        message = json.loads(body.decode(), parse_constant=_refuse, parse_float=_float, parse_int=_int)
    except ValueError as error:
        raise Refusal(400, f"the body must be JSON: {str(error)[:200]}") from error
    except RecursionError as error:
        raise Refusal(400, f"the body must be JSON of at most {MAX_DEPTH} levels") from error
    if not isinstance(message, dict):
        raise Refusal(400, f"the body must be a JSON object, got {type(message).__name__}")
    level: list[Any] = [message]
    for _ in range(MAX_DEPTH):
        level = [below for value in level for below in _below(value)]
        if not level:
            return message
    raise Refusal(400, f"the body must be JSON of at most {MAX_DEPTH} levels")


def _check_sender(token: str | None, channel: int) -> None:
    if not is_authorised(request.headers.get("Authorization"), token):
        raise Refusal(401, "missing or wrong token")
    if "Origin" in request.headers:
        raise Refusal(403, "messages from web pages are refused")
    given = request.headers.get(CHANNEL_HEADER, "")
    if given != str(channel):
        raise Refusal(403, f"the channel must be {channel}, got {given[:20]!r}")


def _response(status: int, reason: str, data: Message | None = None) -> Response:
    return Response(answer(status, reason, data), status, mimetype="application/json")


def _refused(refusal: Refusal) -> Response:
    about = (request.path[:100], request.remote_addr, refusal)
    _refusals.write(_level(refusal.status), str(refusal.status), "refused %r of %s: %s", *about)
    return _response(refusal.status, refusal.reason)


def _level(status: int) -> int:
    return logging.WARNING if status in (401, 403) else logging.INFO


def _failed(error: Exception) -> Response:
    logger.error("the message %r failed", request.path[:100], exc_info=error)
    return _response(500, f"{type(error).__name__} in the coordinator; see its log")


def _below(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"numbers must be finite, got {constant}")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse(text[:20])
    return number


def _int(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**64:
        raise ValueError(f"integers must have at most 64 bits, got {text[:20]}...")
    return int(text)
