"""A worker's connection to the coordinator: messages over HTTP, tensors in files."""

from __future__ import annotations

import json
import logging
import random
import re
import threading
import time
import weakref
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.file_store import FileStore, is_marked
from lightning_ding.distributed.flask_fs import CHANNEL_HEADER, MARK_HEADER, NEEDS_FLASK
from lightning_ding.distributed.transport import Channel, CoordinatorGoneError, LeaseLostError, Message, Refusal

try:
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3 import HTTPConnectionPool
    from urllib3.connection import HTTPConnection
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(NEEDS_FLASK, name=error.name) from error

CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 30.0
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0
HOST = re.compile(r"[0-9A-Za-z.:_%-]{1,255}")

logger = logging.getLogger(__name__)


class FlaskChannel(Channel):
    """Sends messages with ``POST``, over one connection for each calling thread.

    A message without an answer is sent again, so the coordinator may receive it twice; ids and numbers in the message
    show that it is the same. ``connect`` fails if this machine sees a different folder than the coordinator.

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

    Raises:
        ValueError: If an argument is out of range.
    """

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
    ) -> None:
        require(host is None or bool(HOST.fullmatch(host)), "host", "a name or an address", host)
        require(port is None or 0 < port < 65536, "port", "in [1, 65535]", port)
        require(reconnect_timeout > 0, "reconnect_timeout", "> 0 seconds", reconnect_timeout)
        self._folder = folder
        self._data = folder / "data" if path_data is None else Path(path_data)
        self._policies = None if path_policy is None else Path(path_policy)
        self._max_block = max_block
        self.reconnect_timeout = reconnect_timeout
        self._address_file = folder / "coordinator.json"
        self._host, self._port = host, port
        self._headers = {"Content-Type": "application/json", CHANNEL_HEADER: str(channel)}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._url: str | None = None
        self._has_answered = False
        self._of_thread = _OfThread()
        self._sessions: weakref.WeakSet[requests.Session] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @cached_property
    def store(self) -> FileStore:  # type: ignore[override]
        """The store for tensors; its folder is made at the first access."""
        return FileStore(self._data, self._max_block, self._policies)

    @override
    def call(self, name: str, message: Message | None = None) -> Message:
        body = json.dumps(message or {}, allow_nan=False).encode()
        end = time.monotonic() + self.reconnect_timeout
        wait = FIRST_WAIT
        while not self._closed.is_set():
            try:
                return self._send(name, body, end - time.monotonic())
            except _NoAnswerError as error:
                left = end - time.monotonic()
                if left <= 0:
                    reason = f"no answer to {name!r} in {self.reconnect_timeout:g} s: {error}"
                    raise CoordinatorGoneError(reason) from error
                if wait == FIRST_WAIT:
                    # a coordinator may start later than its workers
                    level = logging.WARNING if self._has_answered else logging.INFO
                    logger.log(level, "no answer to %r yet, trying for %.0f s more: %s", name, left, error)
            self._closed.wait(min(left, wait * random.uniform(0.5, 1.0)))
            wait = min(2 * wait, LONGEST_WAIT)
        raise CoordinatorGoneError(f"the channel was closed, so {name!r} got no answer")

    @override
    def close(self) -> None:
        self._closed.set()
        with self._lock:
            for session in self._sessions:
                session.close()

    def _send(self, name: str, body: bytes, left: float) -> Message:
        """Send once.

        Raises:
            Refusal: If the coordinator refuses the message, or uses another folder.
            _NoAnswerError: If there is no answer from a coordinator, or it reports an internal error.
        """
        url = self._url or self._find()
        timeout = (CONNECT_TIMEOUT, min(READ_TIMEOUT, max(left, 1.0)))
        try:
            response = self._session().post(f"{url}/{name}", data=body, timeout=timeout, allow_redirects=False)
            content = _parse(response)
        except (requests.RequestException, _NoAnswerError) as error:
            self._url = None
            raise _NoAnswerError(f"{url}: {error}") from error
        self._url, self._has_answered = url, True
        if response.status_code == 200:
            if name == "connect":
                self._check_folder(response.headers.get(MARK_HEADER))
            return dict(content["data"])
        reason = str(content["message"])
        raise LeaseLostError(reason) if response.status_code == 409 else Refusal(response.status_code, reason)

    def _check_folder(self, mark: str | None) -> None:
        if mark is not None and not is_marked(self._data, mark):
            name = f"main.exp_name={str(self._folder)!r}, which is {str(self._folder.absolute())!r} here,"
            raise Refusal(403, f"{name} is not the folder of the coordinator's run: all machines must share it")

    def _find(self) -> str:
        """Return the URL of the coordinator, if it is known."""
        host, port = self._host, self._port
        if host is None or port is None:
            try:
                content = json.loads(self._address_file.read_text())
                host, port = host or str(content["host"]), port or int(content["port"])
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise _NoAnswerError(f"{self._address_file} contains no address of a coordinator: {error}") from error
            if not HOST.fullmatch(host):
                raise _NoAnswerError(f"{self._address_file} must hold a host, got {host[:100]!r}")
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def _session(self) -> requests.Session:
        session = self._of_thread.session
        if session is None:
            session = requests.Session()
            session.trust_env = False  # no proxies, and no Authorization from a .netrc
            session.headers.update(self._headers)
            session.mount("http://", _Adapter())
            self._of_thread.session = session
            with self._lock:
                self._sessions.add(session)
        return session


class _Connection(HTTPConnection):
    """A connection that sends head and body of a request with one system call."""

    _parts: list[bytes] | None = None

    @override
    def request(self, *arguments: Any, **options: Any) -> None:
        parts = self._parts = []
        try:
            super().request(*arguments, **options)
        finally:
            self._parts = None
        self.send(b"".join(parts))

    @override
    def send(self, data: Any) -> None:
        if self._parts is None:
            super().send(data)
        else:
            self._parts.append(data)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _Adapter(HTTPAdapter):
    @override
    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool}


class _OfThread(threading.local):
    session: requests.Session | None = None


class _NoAnswerError(Exception):
    """There was no answer from a coordinator; a later attempt may succeed."""


def _parse(response: requests.Response) -> dict[str, Any]:
    """Return the content of an answer, which may come from another program than the coordinator."""
    if response.status_code != 200 and not 400 <= response.status_code < 500:
        raise _NoAnswerError(f"status {response.status_code}: {response.text[:200]}")
    try:
        content = json.loads(response.content)
        is_answer = content["code"] == response.status_code and isinstance(content["data"], dict)
    except (ValueError, TypeError, KeyError, RecursionError):
        is_answer = False
    if not is_answer:
        raise _NoAnswerError(f"status {response.status_code}, not from a coordinator: {response.text[:200]!r}")
    return dict(content)
