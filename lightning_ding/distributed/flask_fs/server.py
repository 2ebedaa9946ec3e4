"""Flask on waitress, in a thread of the coordinator's process."""

from __future__ import annotations

import ipaddress
import socket
import threading
from typing import Any

from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.channel import Handler
from lightning_ding.distributed.flask_fs import NEEDS_FLASK
from lightning_ding.distributed.flask_fs.app import answer, make_app

try:
    from waitress import wasyncore
    from waitress.channel import HTTPChannel
    from waitress.server import create_server
    from waitress.task import ErrorTask
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(NEEDS_FLASK, name=error.name) from error

THREADS = 32
"""Messages that are answered at a time; a worker that asks for a task keeps one of them for up to a second."""
CONNECTIONS = 1000
HEADER_BYTES = 16_384


class FlaskServer:
    """Listens for messages and hands them to a handler, from many threads.

    It listens from construction on, so that ``port`` is known, and answers from ``start`` on. The token crosses the
    network as it is: between machines use it in a network that you trust, or through a tunnel.

    Args:
        handler: Such as ``Coordinator.handle``.
        host: Address to listen at.
        port: 0 takes a free one.
        token: That every message must bear; None asks for none.
        channel: That every message must name.
        max_message: Bytes that a message may have; a larger one is refused before it is read.
        mark: Of the folder of the run, by which workers see that it is theirs too; None lets them believe it.

    Raises:
        ValueError: If ``host`` can be reached from other machines and there is no token, or it is no address.
        OSError: If the address is taken or not this machine's.
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
        require(token is None or len(token) > 0, "token", "None or a text that is not empty", token)
        listener = _listen(family, address)
        self._server: Any = create_server(
            make_app(handler, token, channel, max_message, mark),
            sockets=[listener],
            threads=THREADS,
            connection_limit=CONNECTIONS,
            max_request_header_size=HEADER_BYTES,
            max_request_body_size=max_message + 1,  # waitress refuses one that has as many bytes as that
            asyncore_use_poll=True,  # select() takes no file descriptors beyond 1023
            ident=None,
        )
        self._server.channel_class = _Connection
        self._thread = threading.Thread(target=self._server.run, name="flask_fs server", daemon=True)
        self.host = host
        self.port: int = listener.getsockname()[1]

    def start(self) -> None:
        """Answer messages from now on, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Let messages that are being answered end, for up to 5 s, and stop listening; a second time does nothing."""
        server, self._server = self._server, None
        if server is None:
            return
        server.task_dispatcher.shutdown()
        if not self._thread.is_alive():
            wasyncore.close_all(server._map)
            return
        server.trigger.pull_trigger(lambda: wasyncore.close_all(server._map))  # in the thread that reads the sockets
        self._thread.join(timeout=5)


class _ErrorAsJson(ErrorTask):  # type: ignore[misc]
    """Answers what waitress itself refuses, such as a message that is too large, in the form of all answers."""

    @override
    def execute(self) -> None:
        error = self.request.error
        body = answer(error.code, f"{error.reason}: {error.body}")
        self.status = f"{error.code} {error.reason}"
        self.response_headers.append(("Content-Type", "application/json"))
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class _Connection(HTTPChannel):  # type: ignore[misc]
    error_task_class = _ErrorAsJson


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Return the one address to listen at: what is checked is what is listened at, whatever a name means later."""
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
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a coordinator that starts again
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen at {address[0]} port {address[1]}: {error.strerror}") from error
    return listener
