from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from lightning_ding.distributed.ray import worker_set
from lightning_ding.distributed.ray.worker_set import Pending


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


def test_actors_that_were_started_are_not_told_of(
    ray: Any, stand_in: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_set, "PATIENCE", 0.0)
    waiting = Pending(timeout=0.0)
    waiting.add("coordinator", stand_in, {"CPU": 1})
    ray.wait(list(waiting._waiting), timeout=60.0)

    waiting.look()

    assert caplog.messages == []
