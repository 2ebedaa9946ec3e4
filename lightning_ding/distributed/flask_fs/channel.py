"""A worker's way to the coordinator: messages over HTTP, tensors in files."""

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
from lightning_ding.distributed.channel import Channel, Message
from lightning_ding.distributed.errors import CoordinatorGoneError, LeaseLostError, Refusal
from lightning_ding.distributed.flask_fs import CHANNEL_HEADER, MARK_HEADER, NEEDS_FLASK
from lightning_ding.distributed.flask_fs.store import FileStore, is_marked

try:
    import requests
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(NEEDS_FLASK, name=error.name) from error

CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 30.0
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0
HOST = re.compile(r"[0-9A-Za-z.:_%-]{1,255}")

logger = logging.getLogger(__name__)


class FlaskChannel(Channel):
    """Sends messages with ``POST`` and keeps its connections, one for each thread that calls.

    A message that got no answer is sent again, so the coordinator may see it twice. It says itself, by its ids and
    numbers, whether it is the same. A worker that connects and whose folder is not the coordinator's is refused here.

    Args:
        folder: Of the run, on a disk that all machines share; tensors go into ``folder/data``.
        host: Of the coordinator; None reads it from ``coordinator.json`` in the folder, again whenever the coordinator
            does not answer.
        port: Of the coordinator; None reads it from there too.
        token: That messages bear; None for none.
        channel: Of the run.
        reconnect_timeout: Seconds for which a coordinator that does not answer is tried, > 0.
        max_block: Bytes that a block of tensors may have.

    Raises:
        ValueError: If an argument is out of its range.
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
    ) -> None:
        require(host is None or bool(HOST.fullmatch(host)), "host", "a name or an address", host)
        require(port is None or 0 < port < 65536, "port", "in [1, 65535]", port)
        require(reconnect_timeout > 0, "reconnect_timeout", "> 0 seconds", reconnect_timeout)
        self._folder = folder
        self._max_block = max_block
        self.reconnect_timeout = reconnect_timeout
        self._address_file = folder / "coordinator.json"
        self._host, self._port = host, port
        self._headers = {"Content-Type": "application/json", CHANNEL_HEADER: str(channel)}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._url: str | None = None
        self._has_answered = False
        self._of_thread = threading.local()
        self._sessions: weakref.WeakSet[requests.Session] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @cached_property
    def store(self) -> FileStore:  # type: ignore[override]
        """Where tensors go; its folder is made when it is first asked for."""
        return FileStore(self._folder / "data", self._max_block)

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
                    level = logging.WARNING if self._has_answered else logging.INFO  # at the start it may be slower
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
            Refusal: If the coordinator does not take the message, or its folder is another one.
            _NoAnswerError: If no answer of a coordinator came, or it says that something is wrong with itself.
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
        if mark is not None and not is_marked(self._folder / "data", mark):
            name = f"main.exp_name={str(self._folder)!r}, which is {str(self._folder.absolute())!r} here,"
            raise Refusal(403, f"{name} is not the folder of the coordinator's run: all machines have to share it")

    def _find(self) -> str:
        """Return where the coordinator listens, as far as is known."""
        host, port = self._host, self._port
        if host is None or port is None:
            try:
                content = json.loads(self._address_file.read_text())
                host, port = host or str(content["host"]), port or int(content["port"])
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise _NoAnswerError(f"{self._address_file} does not say where the coordinator is: {error}") from error
            if not HOST.fullmatch(host):
                raise _NoAnswerError(f"{self._address_file} must hold a host, got {host[:100]!r}")
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._of_thread, "session", None)
        if session is None:
            session = requests.Session()
            session.trust_env = False  # no proxies, and no other Authorization from a .netrc
            session.headers.update(self._headers)
            self._of_thread.session = session
            with self._lock:
                self._sessions.add(session)
        return session


class _NoAnswerError(Exception):
    """The coordinator did not answer, or not as one does; it may yet."""


def _parse(response: requests.Response) -> dict[str, Any]:
    """Return an answer's content; what listens there now is perhaps another program than the coordinator."""
    if response.status_code != 200 and not 400 <= response.status_code < 500:
        raise _NoAnswerError(f"status {response.status_code}: {response.text[:200]}")
    try:
        content = json.loads(response.content)
        is_answer = content["code"] == response.status_code and isinstance(content["data"], dict)
    except (ValueError, TypeError, KeyError, RecursionError):
        is_answer = False
    if not is_answer:
        raise _NoAnswerError(f"status {response.status_code}, which is no coordinator's: {response.text[:200]!r}")
    return dict(content)
