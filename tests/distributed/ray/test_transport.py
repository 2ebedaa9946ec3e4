"""Addresses at which there is no cluster."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from lightning_ding.distributed.ray.channel import join_cluster
from lightning_ding.entry.cli import main

ray = pytest.importorskip("ray")


@pytest.fixture
def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@pytest.mark.parametrize("address", ["nonsense", "10.0.0.1", "10.0.0.1:", ":6379", "10.0.0.1:port", "ray://a:70000"])
def test_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"system\.ray_address must be .*host:port.*, got '" + address):
        join_cluster(address)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "ray://[127.0.0.1]:{}"])
def test_address_without_an_answer_raises_at_once(form: str, free_port: int) -> None:
    address, start = form.format(free_port), time.monotonic()
    with pytest.raises(ConnectionError, match=r"system\.ray_address: nothing answers at .*refused") as error:
        join_cluster(address)
    assert repr(address) in str(error.value)
    assert time.monotonic() - start < 10


def test_machine_without_a_cluster_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(address: str, **options: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ConnectionError, match=r"system\.ray_address: there is no cluster at 'auto': Could not find"):
        join_cluster("auto")


def test_command_ends_in_one_line_and_writes_nothing(
    free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    run, system = tmp_path / "run", {"transport": "ray", "ray_address": f"127.0.0.1:{free_port}"}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"main": {"exp_name": str(run)}, "system": system}))
    with pytest.raises(SystemExit) as end:
        main(["parallel", "--config", str(file)])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert end.value.code == 2
    assert line.startswith("error: system.ray_address: nothing answers at")
    assert not run.exists()
