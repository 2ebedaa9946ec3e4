"""The connections of the server: what ends them, and what is refused before it is read."""

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

from lightning_ding.distributed.flask_fs import connections, server as server_module
from lightning_ding.distributed.flask_fs.connections import SparseLog
from lightning_ding.distributed.flask_fs.server import FlaskServer
from lightning_ding.distributed.transport import Message
from tests.processes import wait_for

TOKEN = "0123456789abcdef"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Lightning-Ding-Channel": "0"}
HEAD = "".join(f"{name}: {value}\r\n" for name, value in {**HEADERS, "Content-Type": "application/json"}.items())
HALF = f"POST /echo HTTP/1.1\r\nHost: x\r\n{HEAD}Content-Length: 2\r\n\r\n{{".encode()
WHOLE = HALF + b"}"


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


def test_request_that_never_ends_and_silent_connections_are_closed_and_workers_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT", 0.2)
    monkeypatch.setattr(server_module, "CHECK", 0.05)
    with serving() as server, requests.Session() as session:
        assert ask(server, session) == 200
        (worker,) = server.connections.connections
        assert is_closed(connect(server, HALF))
        assert is_closed(connect(server, HALF[:30]))
        assert is_closed(connect(server))
        wait_for(lambda: server.connections.connections == [worker])
        assert ask(server, session) == 200


def test_second_request_of_a_worker_that_never_ends_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT", 0.2)
    monkeypatch.setattr(server_module, "CHECK", 0.05)
    with serving() as server:
        connection = connect(server, WHOLE)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        time.sleep(0.4)  # nothing is due
        connection.sendall(HALF)
        assert is_closed(connection)


def test_silent_connections_make_room_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "allowed_connections", lambda: 20)
    with serving() as server, requests.Session() as session:
        assert ask(server, session) == 200
        silent = [connect(server) for _ in range(40)]
        assert ask(server) == 200
        assert ask(server, session) == 200
        assert len(server.connections.connections) <= 20
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
        log.write(logging.WARNING, "one kind", "at %d", second)
    log.write(logging.WARNING, "other", "another kind")
    expected = ["at 0", "at 6 (and 2 similar ones before)", "at 12 (and 1 similar ones before)", "another kind"]
    assert [one.getMessage() for one in caplog.records] == expected


def test_answer_is_sent_with_one_system_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    send = socket.socket.send

    def note(connection: socket.socket, data: Any) -> int:
        sent.append(bytes(data))
        return send(connection, data)

    with serving() as server, requests.Session() as session:
        assert ask(server, session) == 200
        monkeypatch.setattr(socket.socket, "send", note)
        assert [ask(server, session) for _ in range(3)] == [200] * 3
    answers = [data for data in sent if data != b"\0"]  # which wakes the loop
    assert len(answers) == 3
    assert all(data.startswith(b"HTTP/1.1 200") and data.endswith(b"}") for data in answers)


def test_client_that_leaves_during_its_request_is_noticed_before_the_answer() -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def wait(name: str, message: Message) -> Message:
        is_asked.set()
        assert may_answer.wait(20)
        return {}

    server = FlaskServer(wait, token=TOKEN)
    server.start()
    connection = connect(server, WHOLE)
    assert is_asked.wait(20)
    connection.close()
    deadline = time.monotonic() + 20
    while server.connections.connections and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not server.connections.connections
    may_answer.set()
    server.close()


def test_process_ends_with_one_line_when_the_loop_of_the_server_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_ended = threading.Event()
    monkeypatch.setattr(server_module, "_end_process", has_ended.set)

    def fail(selector: Any, timeout: float | None = None) -> Any:
        raise OSError(12, "no memory for epoll")

    with serving() as server:
        assert ask(server) == 200
        monkeypatch.setattr(selectors.DefaultSelector, "select", fail)
        assert has_ended.wait(20)
        monkeypatch.undo()
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.CRITICAL]
    assert lines == ["the HTTP server failed, so this process ends: OSError(12, 'no memory for epoll')"]
