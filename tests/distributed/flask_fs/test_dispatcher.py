"""The order in which requests are answered, and that data never occupy all threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import requests

from lightning_ding.distributed.flask_fs.dispatcher import RequestQueue
from lightning_ding.distributed.flask_fs.server import FlaskServer
from lightning_ding.distributed.transport import ANSWERED_AT_ONCE, DATA_AT_ONCE, Message

HEADERS = {"X-Lightning-Ding-Channel": "0"}
DATA = "collector_data_task"


def request(name: str, error: Any = None) -> Any:
    return SimpleNamespace(name=name, requests=[SimpleNamespace(path=f"/{name}", error=error)])


def test_heartbeats_are_answered_first_and_data_last_up_to_their_limit() -> None:
    queue = RequestQueue(limit=2)
    assert not queue
    for given in (request(DATA), request("task"), request(DATA), request(DATA), request("heartbeat")):
        queue.append(given)
    queue.append(request("heartbeat", error="wrong token"))
    assert len(queue) == 6
    taken = []
    while queue:
        taken.append(queue.popleft().name)
    assert taken == ["heartbeat", "task", "heartbeat", DATA, DATA]
    assert (len(queue), queue.num_blocking) == (1, 2)
    queue.num_blocking -= 1
    assert queue
    assert queue.popleft().name == DATA


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
        number = ANSWERED_AT_ONCE + 5
        collectors = [threading.Thread(target=lambda: answers.append(ask(server, DATA))) for _ in range(number)]
        for collector in collectors:
            collector.start()
        for _ in range(DATA_AT_ONCE):
            assert inside.acquire(timeout=20)
        assert [ask(server, "heartbeat") for _ in range(3)] == ["heartbeat"] * 3
        assert ask(server, "task") == "task"
        assert not inside.acquire(timeout=0.05)
        may_answer.set()
        for collector in collectors:
            collector.join(20)
    assert answers == [DATA] * number
