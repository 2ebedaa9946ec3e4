from __future__ import annotations

import logging
import re
import time
from typing import Any

import pytest

from lightning_ding.config import resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.ray import worker_set
from lightning_ding.distributed.ray.worker_set import Pending, WorkerSet
from tests.processes import wait_for


class Nothing:
    """An actor that does nothing."""


@pytest.fixture
def large(ray: Any) -> Any:
    """Return an actor that no machine has room for."""
    return ray.remote(Nothing).options(num_cpus=1000).remote()


def test_actors_without_resources_are_logged_once_and_given_up_after_the_timeout(
    large: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = r"Ray has not started learner 0, collector 1 in \d+ s, for which it needs 1001 CPU \(\d of 5 free\)"
    waiting = Pending(timeout=3600.0)
    waiting.add("learner 0", large, {"CPU": 1000, "GPU": 0})
    waiting.add("collector 1", large, {"CPU": 1})
    waiting.look()
    assert caplog.messages == []

    monkeypatch.setattr(worker_set, "PATIENCE", 0.0)
    with caplog.at_level(logging.WARNING):
        waiting.look()
        waiting.look()

    assert len(caplog.messages) == 1
    assert re.fullmatch(text, caplog.messages[0])
    waiting._timeout = 0.0
    with pytest.raises(RuntimeError, match=f"^{text}$"):
        waiting.look()


def test_workers_that_do_their_tasks_are_not_waited_for_any_more(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        def __init__(self, *args: Any) -> None:
            pass

        def node(self) -> str:
            return "a node"

        def run(self, *args: Any) -> None:
            time.sleep(3600)

    monkeypatch.setattr(worker_set, "WorkerActor", Busy)
    workers = WorkerSet(resolve(ParallelConfig, {}))
    workers.start("collector 1", "collector", {"CPU": 1})
    try:
        ready = list(workers.pending._waiting)
        assert ray.wait(ready, timeout=60.0)[0] == ready
        wait_for(lambda: workers.node("collector 1") == "a node")
        workers.look()
        assert workers.pending._waiting == {}
    finally:
        workers.close()


def test_actors_that_were_started_are_not_told_of(
    ray: Any, stand_in: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_set, "PATIENCE", 0.0)
    waiting = Pending(timeout=0.0)
    waiting.add("coordinator", stand_in, {"CPU": 1})
    ray.wait(list(waiting._waiting), timeout=60.0)

    waiting.look()

    assert caplog.messages == []
