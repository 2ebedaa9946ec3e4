"""The role of the coordinator: in which order it starts and stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_ding.config import resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.flask_fs.transport import FlaskTransport
from lightning_ding.entry import coordinate as role
from tests.distributed.coordinator.coordinating import config


def test_server_answers_until_the_workers_have_left_and_no_longer_than_the_database_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class Server:
        def __init__(self) -> None:
            self.address = {"host": "127.0.0.1", "port": 1}

        def start(self) -> None:
            order.append("answers")

        def close(self) -> None:
            order.append("answers no more")

    def wait(coordinator: Coordinator, received: list[int]) -> None:
        run = coordinator.run
        noted(run.lock, "wait_for", "waits")
        noted(run.database, "close", "is closed")

    def noted(owner: Any, name: str, what: str) -> None:
        function = getattr(owner, name)

        def note(*given: Any) -> Any:
            order.append(what)
            return function(*given)

        monkeypatch.setattr(owner, name, note)

    monkeypatch.setattr(FlaskTransport, "serve", lambda *given: Server())
    monkeypatch.setattr(role, "_wait", wait)
    settings: Any = config(tmp_path / "run")
    settings["system"]["transport"] = "flask_fs"
    assert role.coordinate(resolve(ParallelConfig, settings)) == 0
    assert order == ["answers", "waits", "answers no more", "is closed"]
