"""Threads for the answers: data that wait never occupy those of other messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import requests

from lightning_ding.distributed.flask_fs.server import OTHER_THREADS, THREADS, FlaskServer
from lightning_ding.distributed.transport import DATA, HEARTBEAT, Message

HEADERS = {"X-Lightning-Ding-Channel": "0"}


@contextmanager
def blocking_data() -> Iterator[tuple[FlaskServer, threading.Semaphore, threading.Event]]:
    """Yield a server that does not answer data before an event, and counts those that it is answering."""
    inside, may_answer = threading.Semaphore(0), threading.Event()

    def answer(name: str, message: Message) -> Message:
        if name == DATA:
            inside.release()
            assert may_answer.wait(60)
        return {"name": name}

    server = FlaskServer(answer)
    server.start()
    try:
        yield server, inside, may_answer
    finally:
        may_answer.set()
        server.close()


def ask(server: FlaskServer, name: str) -> str:
    address = f"http://127.0.0.1:{server.port}/{name}"
    return str(requests.post(address, json={}, headers=HEADERS, timeout=20).json()["data"]["name"])


def test_data_of_many_collectors_that_all_wait_leave_threads_for_heartbeats() -> None:
    answers: list[str] = []
    with blocking_data() as (server, inside, may_answer):
        number = 2 * THREADS[DATA] + OTHER_THREADS
        collectors = [threading.Thread(target=lambda: answers.append(ask(server, DATA))) for _ in range(number)]
        for collector in collectors:
            collector.start()
        for _ in range(THREADS[DATA]):
            assert inside.acquire(timeout=20)
        assert [ask(server, HEARTBEAT) for _ in range(3)] == [HEARTBEAT] * 3
        assert ask(server, "task") == "task"
        assert not inside.acquire(timeout=0.05)
        assert server.unanswered == number
        may_answer.set()
        for collector in collectors:
            collector.join(20)
    assert answers == [DATA] * number
    assert server.unanswered == 0
