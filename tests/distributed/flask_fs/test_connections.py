"""The connections of the server: their cost, what ends them, and what is refused before it is read."""

from __future__ import annotations

import logging
import selectors
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import requests

from lightning_ding.distributed.flask_fs import connections
from lightning_ding.distributed.flask_fs.connections import Connection, SparseLog
from lightning_ding.distributed.flask_fs.server import FlaskServer
from lightning_ding.distributed.transport import Message

TOKEN = "0123456789abcdef"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Lightning-Ding-Channel": "0"}
HALF = b"POST /echo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\nContent-Length: 10\r\n\r\n{"


@contextmanager
def serving() -> Iterator[FlaskServer]:
    def echo(name: str, message: Message) -> Message:
        return message

    server = FlaskServer(echo, token=TOKEN)
    server.start()
    yield server
    server.close()


def ask(server: FlaskServer, session: Any = requests, token: str = TOKEN) -> int:
    headers = {**HEADERS, "Authorization": f"Bearer {token}"}
    return int(session.post(f"http://127.0.0.1:{server.port}/echo", json={}, headers=headers, timeout=10).status_code)


def connect(server: FlaskServer, content: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(content)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server closes a connection, after waiting for that."""
    with suppress(ConnectionResetError):
        return connection.recv(1000) == b""
    return True


def test_requests_do_not_look_at_idle_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Counter[Any] = Counter()

    def count(channel: Any) -> bool:
        looks[channel] += 1
        return bool(super(Connection, channel).readable())

    monkeypatch.setattr(Connection, "readable", count, raising=False)
    monkeypatch.setattr(connections, "CHECK", 60.0)
    with serving() as server, requests.Session() as session:
        idle = [connect(server) for _ in range(50)]
        assert ask(server, session) == 200
        before = looks.copy()
        for _ in range(20):
            assert ask(server, session) == 200
        (asking,) = (looks - before).keys()  # how often depends on the threads
        assert len(before) == 51
        assert looks[asking] >= before[asking] + 20
        for connection in idle:
            connection.close()


def test_request_that_never_ends_and_silent_connections_are_closed_and_workers_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT", 0.2)
    monkeypatch.setattr(connections, "CHECK", 0.05)
    with serving() as server, requests.Session() as session:
        assert ask(server, session) == 200
        (worker,) = server._server.active_channels
        assert is_closed(connect(server, HALF))
        assert is_closed(connect(server))
        assert list(server._server.active_channels) == [worker]
        assert ask(server, session) == 200


def test_silent_connections_make_room_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "allowed_connections", lambda: 20)
    monkeypatch.setattr("lightning_ding.distributed.flask_fs.server.allowed_connections", lambda: 20)
    monkeypatch.setattr(connections, "CHECK", 0.05)
    with serving() as server, requests.Session() as session:
        assert ask(server, session) == 200
        silent = [connect(server) for _ in range(40)]
        assert ask(server) == 200
        assert ask(server, session) == 200
        for connection in silent:
            connection.close()


def test_request_without_the_token_is_refused_before_its_body_arrives() -> None:
    with serving() as server:
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nContent-Length: 900000\r\n\r\n"
        connection = connect(server, head)
        assert connection.recv(1000).startswith(b"HTTP/1.1 401")


def test_flood_of_wrong_tokens_writes_few_lines_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), serving() as server:
        start = time.monotonic()
        assert {ask(server, token="x" * 16) for _ in range(50)} == {401}
        lines = [one for one in caplog.records if "wrong token" in one.getMessage()]
        assert len(lines) <= 1 + time.monotonic() - start


def test_workers_are_answered_during_a_flood_of_wrong_tokens() -> None:
    """A worker's wait is counted in wrong tokens that are refused during it, because machines differ in speed."""
    is_over, refused, waited = threading.Event(), Counter[int](), []

    def flood(client: int) -> None:
        while not is_over.is_set():
            refused[client] += ask(server, token="x" * 16) == 401

    with serving() as server, requests.Session() as session:
        threads = [threading.Thread(target=flood, args=[client], daemon=True) for client in range(4)]
        for thread in threads:
            thread.start()
        while len(+refused) < len(threads):
            assert all(thread.is_alive() for thread in threads)
            time.sleep(0.01)
        for _ in range(20):
            before = refused.total()
            assert ask(server, session) == 200
            waited.append(refused.total() - before)
        is_over.set()
        for thread in threads:
            thread.join(10)
    assert statistics.median(waited) <= 10 * len(threads)  # ten turns of every client


def test_sparse_log_counts_the_lines_that_it_leaves_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log = SparseLog(logging.getLogger("sparse"), seconds=5.0)
    for second in (0.0, 1.0, 4.0, 6.0, 7.0, 12.0):
        now[0] = second
        log.warning("at %d", second)
    log.write(logging.WARNING, "other", "another kind")
    expected = ["at 0", "at 6 (and 2 similar ones before)", "at 12 (and 1 similar ones before)", "another kind"]
    assert [one.getMessage() for one in caplog.records] == expected


def test_answer_is_sent_with_one_system_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    send = Connection.send

    def note(connection: Connection, data: bytes, do_close: bool = True) -> int:
        sent.append(data)
        return int(send(connection, data, do_close))

    monkeypatch.setattr(Connection, "send", note)
    with serving() as server, requests.Session() as session:
        assert [ask(server, session) for _ in range(3)] == [200] * 3
    assert len(sent) == 3
    assert all(data.startswith(b"HTTP/1.1 200") and data.endswith(b"}") for data in sent)


def test_selector_keeps_a_connection_while_its_requests_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[str] = []
    for name in ("register", "modify", "unregister"):
        function = getattr(selectors.DefaultSelector, name)

        def note(*arguments: Any, name: str = name, function: Any = function) -> Any:
            changes.append(name)
            return function(*arguments)

        monkeypatch.setattr(selectors.DefaultSelector, name, note)
    with serving() as server, requests.Session() as session:
        assert ask(server, session) == 200
        changes.clear()
        assert [ask(server, session) for _ in range(10)] == [200] * 10
        assert {"register", "unregister"}.isdisjoint(changes)
        assert len(changes) < 20  # none on a quiet machine, and not one for each request and each answer


def test_client_that_leaves_during_its_request_is_noticed_before_the_answer() -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def wait(name: str, message: Message) -> Message:
        is_asked.set()
        assert may_answer.wait(20)
        return {}

    server = FlaskServer(wait, token=TOKEN)
    server.start()
    request = HALF.replace(b"Content-Length: 10", b"Content-Length: 2\r\nX-Lightning-Ding-Channel: 0")
    connection = connect(server, request.replace(b"Host", b"Content-Type: application/json\r\nHost") + b"}")
    assert is_asked.wait(20)
    connection.close()
    deadline = time.monotonic() + 20
    while server._server.active_channels and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not server._server.active_channels
    may_answer.set()
    server.close()


def test_process_ends_with_one_line_when_the_loop_of_the_server_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_ended = threading.Event()
    monkeypatch.setattr(connections, "_end_process", has_ended.set)

    def fail(loop: Any, *_: Any) -> None:
        raise OSError(12, "no memory for epoll")

    with serving() as server:
        monkeypatch.setattr(connections.EventLoop, "_handle", fail)
        with pytest.raises(requests.RequestException):
            requests.post(f"http://127.0.0.1:{server.port}/echo", timeout=0.5)
        assert has_ended.wait(20)
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.CRITICAL]
    assert lines == ["the HTTP server failed, so this process ends: OSError(12, 'no memory for epoll')"]
