"""A worker's connection to the coordinator: messages over HTTP, tensors in files."""

from __future__ import annotations

import json
import re
import ssl
import threading
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.file_store import FileStore, is_marked
from lightning_ding.distributed.flask_fs import CHANNEL_HEADER, MARK_HEADER
from lightning_ding.distributed.transport import (
    ADDRESS_FILE,
    Message,
    NoAnswerError,
    Refusal,
    RetryingChannel,
    refusal_of,
)

CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 30.0
HOST = re.compile(r"[0-9A-Za-z.:_%-]{1,255}")


class FlaskChannel(RetryingChannel):
    """Sends messages with ``POST``, over one connection for each calling thread.

    ``connect`` fails if this machine sees a different folder than the coordinator.

    Args:
        folder: Folder of the run, on a disk that all machines share; tensors are in ``folder/data``.
        host: Address of the coordinator; None reads it from ``coordinator.json`` in the folder, again whenever the
            coordinator does not answer.
        port: Port of the coordinator; None reads it from the same file.
        token: Token to send; None for none.
        channel: Channel number of the run.
        reconnect_timeout: Seconds for which calls are retried while the coordinator does not answer, > 0.
        max_block: Maximum size of a block of tensors, in bytes.
        path_data: Folder of the tensors; None means ``folder/data``.
        path_policy: Folder of the published weights; None means ``path_data``.
        tls: Trusted certificates for HTTPS; None for HTTP.

    Raises:
        ValueError: If an argument is out of range.
    """

    failures = (OSError, HTTPException, NoAnswerError)

    def __init__(
        self,
        folder: Path,
        host: str | None = None,
        port: int | None = None,
        token: str | None = None,
        channel: int = 0,
        reconnect_timeout: float = 120.0,
        max_block: int = 2_000_000_000,
        path_data: str | None = None,
        path_policy: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        require(host is None or bool(HOST.fullmatch(host)), "host", "a name or an address", host)
        require(port is None or 0 < port < 65536, "port", "in [1, 65535]", port)
        super().__init__(reconnect_timeout)
        self._folder = folder
        self._data = folder / "data" if path_data is None else Path(path_data)
        self._policies = None if path_policy is None else Path(path_policy)
        self._max_block = max_block
        self._address_file = folder / ADDRESS_FILE
        self._host, self._port, self._tls = host, port, tls
        self._headers = {"Content-Type": "application/json", CHANNEL_HEADER: str(channel)}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connections: dict[int, HTTPConnection] = {}  # by the id of the thread

    @cached_property
    def store(self) -> FileStore:  # type: ignore[override]
        """The store for tensors; its folder is made at the first access."""
        return FileStore(self._data, self._max_block, self._policies)

    @override
    def close(self) -> None:
        self._closed.set()
        for connection in list(self._connections.values()):
            connection.close()

    @override
    def _forget_connection(self) -> None:
        if (connection := self._connections.pop(threading.get_ident(), None)) is not None:
            connection.close()

    @override
    def _send(self, name: str, message: Message, left: float) -> Message:
        body = json.dumps(message, allow_nan=False).encode()
        connection = self._connections.get(threading.get_ident())
        if connection is None or (sock := connection.sock) is None:  # the coordinator closes it after some refusals
            connection = self._connect()
            sock = connection.sock
        sock.settimeout(min(READ_TIMEOUT, max(left, 1.0)))
        connection.request("POST", f"/{name}", body, self._headers)
        response = connection.getresponse()
        content = _parse(response.status, response.read())
        self._has_answered = True
        if response.status != 200:
            raise refusal_of(response.status, str(content["message"]))
        mark = response.headers.get(MARK_HEADER)
        if name == "connect" and mark is not None and not is_marked(self._data, mark):
            named = f"main.exp_name={str(self._folder)!r}, which is {str(self._folder.absolute())!r} here,"
            raise Refusal(403, f"{named} is not the folder of the coordinator's run: all machines must share it")
        return dict(content["data"])

    def _connect(self) -> HTTPConnection:
        host, port = self._find()
        options: Any = {"timeout": CONNECT_TIMEOUT}
        plain = self._tls is None
        connection = _Connection(host, port, **options) if plain else _Secure(host, port, context=self._tls, **options)
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            told = f"the certificate of {host}:{port} is not one that system.coordinator.ca_file trusts"
            raise Refusal(403, f"{told}: {error.verify_message}") from error
        self._connections[threading.get_ident()] = connection
        return connection

    def _find(self) -> tuple[str, int]:
        """Return host and port of the coordinator, if they are known."""
        host, port = self._host, self._port
        if host is None or port is None:
            try:
                content = json.loads(self._address_file.read_text())
                host, port = host or str(content["host"]), port or int(content["port"])
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise NoAnswerError(f"{self._address_file} contains no address of a coordinator: {error}") from error
            if not HOST.fullmatch(host):
                raise NoAnswerError(f"{self._address_file} must hold a host, got {host[:100]!r}")
        return host, port


class _Connection(HTTPConnection):
    """A connection that sends head and body of a request with one system call."""

    auto_open = 0
    _head = b""

    @override
    def send(self, data: Any) -> None:
        if data.startswith(b"POST ") and data.endswith(b"\r\n\r\n"):
            self._head = data
        else:
            head, self._head = self._head, b""
            super().send(head + data)


class _Secure(_Connection, HTTPSConnection):
    """The same over TLS."""


def _parse(status: int, body: bytes) -> dict[str, Any]:
    """Return the content of an answer, which may come from another program than the coordinator."""
    if status != 200 and not 400 <= status < 500:
        raise NoAnswerError(f"status {status}: {body[:200]!r}")
    try:
        content = json.loads(body)
        is_answer = content["code"] == status and isinstance(content["data"], dict)
    except (ValueError, TypeError, KeyError, RecursionError):
        is_answer = False
    if not is_answer:
        raise NoAnswerError(f"status {status}, not from a coordinator: {body[:200]!r}")
    return dict(content)
