"""Addresses that lead to the coordinator from elsewhere, or only from its own machine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.config import resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.flask_fs.auth import callable_name, leads_to_one_machine
from lightning_ding.distributed.flask_fs.channel import FlaskChannel
from lightning_ding.distributed.flask_fs.transport import FlaskTransport

ELSEWHERE = ["10.0.0.1", "192.168.1.5", "fe80::1%eth0", "2001:db8::1", "node-1", "node-1.example.org"]
NOT_ELSEWHERE = ["127.0.0.1", "127.0.1.1", "::1", "0.0.0.0", "::", "localhost", ""]


def test_loopback_and_all_addresses_at_once_are_none_to_call_from_elsewhere() -> None:
    assert [leads_to_one_machine(host) for host in ELSEWHERE] == [True] * len(ELSEWHERE)
    assert [leads_to_one_machine(host) for host in NOT_ELSEWHERE] == [False] * len(NOT_ELSEWHERE)


@pytest.mark.parametrize("host", [*ELSEWHERE, "127.0.0.1", "::1", "localhost"])
def test_a_coordinator_at_one_address_is_called_by_it(host: str) -> None:
    assert callable_name(host) == host


def test_a_coordinator_at_all_addresses_is_called_by_a_name_that_leads_somewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "localhost")
    assert callable_name("0.0.0.0") == callable_name("::") == "localhost"
    assert caplog.records == []
    monkeypatch.setattr(socket, "getfqdn", lambda: "nowhere.invalid")
    assert (callable_name("0.0.0.0"), callable_name("::")) == ("127.0.0.1", "::1")
    warnings = [record.message for record in caplog.records]
    assert [one.startswith("this machine's name 'nowhere.invalid' cannot be resolved") for one in warnings] == [
        True
    ] * 2


@pytest.mark.parametrize(
    ("host", "port", "given", "found"),
    [
        ("10.0.0.1", 5000, (None, None), ("10.0.0.1", 5000)),
        ("10.0.0.1", 5000, ("10.0.0.2", 6000), ("10.0.0.2", 6000)),
        ("10.0.0.1", 0, (None, None), ("from.file", 7000)),
        ("127.0.0.1", 5000, (None, None), ("from.file", 7000)),
        ("0.0.0.0", 5000, (None, None), ("from.file", 7000)),
    ],
)
def test_worker_takes_the_address_from_arguments_config_or_file(
    host: str, port: int, given: tuple[str | None, int | None], found: tuple[str, int], tmp_path: Path
) -> None:
    (tmp_path / "coordinator.json").write_text('{"host": "from.file", "port": 7000}')
    coordinator = {"host": host, "port": port}
    cfg = resolve(ParallelConfig, {"main": {"exp_name": str(tmp_path)}, "system": {"coordinator": coordinator}})
    channel = FlaskTransport().connect(cfg, *given)
    assert isinstance(channel, FlaskChannel)
    assert channel._find() == found


def test_folder_of_blocks_belongs_to_one_run_until_it_is_over(tmp_path: Path) -> None:
    def config_of(run: str, **system: str) -> ParallelConfig:
        return resolve(ParallelConfig, {"main": {"exp_name": str(tmp_path / run)}, "system": system})

    shared = {name: str(tmp_path / name) for name in ("path_data", "path_policy")}
    transport, first = FlaskTransport(), config_of("first", **shared)
    store = transport.make_store(first)
    transport.make_store(first)  # the coordinator was restarted
    for name, folder in shared.items():
        with pytest.raises(ValueError, match=f"'{folder}' belongs to the run in '{tmp_path / 'first'}'"):
            transport.make_store(config_of("second", **{name: folder}))
    transport.make_store(config_of("second"))
    assert not list((tmp_path / "second").rglob("*.txt"))  # its folder is its own
    assert isinstance(store, FileStore)
    store.clear()
    transport.make_store(config_of("second", **shared))


def test_folder_of_blocks_on_a_full_disk_belongs_to_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, real = FileStore(tmp_path / "blocks"), Path.open

    def open_full(file: Path, mode: str = "r") -> Any:
        file.touch()
        return real(Path("/dev/full"), "w")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", open_full)
        with pytest.raises(OSError, match="No space left on device"):
            store.claim(tmp_path / "run")
    store.claim(tmp_path / "run")
    assert (tmp_path / "blocks" / "run.txt").read_text() == str(tmp_path / "run")
