"""Messages over HTTPS: workers verify the coordinator's certificate, and each mistake is one clear error."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.config import resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.flask_fs import server as server_module
from lightning_ding.distributed.flask_fs.auth import server_tls
from lightning_ding.distributed.flask_fs.server import FlaskServer
from lightning_ding.distributed.flask_fs.transport import FlaskTransport
from lightning_ding.distributed.transport import CoordinatorGoneError, Message, Refusal

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def make_certificate(folder: Path, name: str, address: str = "IP:127.0.0.1") -> Path:
    """Write a certificate that signs itself into ``name.pem``, and its key into ``name.key``."""
    file, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", f"/CN={name}", "-addext", f"subjectAltName={address}", "-keyout", str(key), "-out", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificate(folder, "good")
    make_certificate(folder, "other")
    make_certificate(folder, "elsewhere", "DNS:coordinator.example.org")
    return folder


def config_of(tmp_path: Path, **coordinator: Any) -> ParallelConfig:
    system = {"reconnect_timeout": 0.5, "coordinator": coordinator}
    return resolve(ParallelConfig, {"main": {"exp_name": str(tmp_path / "run")}, "system": system})


def tls_of(files: Path, certificate: str = "good", ca: str | None = "good") -> dict[str, Any]:
    found = {"certificate_file": str(files / f"{certificate}.pem"), "key_file": str(files / f"{certificate}.key")}
    return found if ca is None else {**found, "ca_file": str(files / f"{ca}.pem")}


@contextmanager
def serving(config: ParallelConfig) -> Iterator[FlaskServer]:
    def echo(name: str, message: Message) -> Message:
        return {"name": name, **message}

    transport = FlaskTransport()
    server: Any = transport.serve(config, echo, transport.make_store(config))
    server.start()
    folder = Path(config.main.exp_name)
    (folder / "coordinator.json").write_text(json.dumps(server.address))
    try:
        yield server
    finally:
        server.close()


def call(config: ParallelConfig, name: str = "connect", **message: Any) -> Message:
    channel = FlaskTransport().connect(config)
    try:
        return channel.call(name, message)
    finally:
        channel.close()


def test_messages_travel_over_tls_and_plain_http_is_not_answered(files: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path, **tls_of(files))
    with serving(config):
        large = "é" * 100_000
        assert call(config, text=large) == {"name": "connect", "text": large}
        with pytest.raises(CoordinatorGoneError, match=r"no answer to 'connect' in 0\.5 s"):
            call(config_of(tmp_path))
        assert call(config) == {"name": "connect"}


@pytest.mark.parametrize(
    ("certificate", "ca", "reason"),
    [
        ("good", "other", "self-signed certificate"),
        ("good", None, "self-signed certificate"),  # the authorities of the system do not know it
        ("elsewhere", "elsewhere", "IP address mismatch, certificate is not valid for '127.0.0.1'"),
    ],
)
def test_worker_refuses_a_coordinator_with_a_certificate_that_it_does_not_trust(
    certificate: str, ca: str | None, reason: str, files: Path, tmp_path: Path
) -> None:
    config = config_of(tmp_path, **tls_of(files, certificate, ca))
    with serving(config) as server, pytest.raises(Refusal) as caught:
        call(config)
    told = f"the certificate of 127.0.0.1:{server.port} is not one that system.coordinator.ca_file trusts: "
    assert caught.value.status == 403  # which no worker tries again
    assert caught.value.reason.startswith(told)
    assert reason.lower() in caught.value.reason.lower().replace("self signed", "self-signed")


def test_worker_with_tls_does_not_talk_to_a_coordinator_without(files: Path, tmp_path: Path) -> None:
    with serving(config_of(tmp_path)), pytest.raises(CoordinatorGoneError, match=r"SSL|connection"):
        call(config_of(tmp_path, **tls_of(files)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"certificate_file": "no.pem"},
            "certificate_file and key_file .* got 'no.pem' and .*No such file",
        ),
        ({"key_file": "{}/other.key"}, "certificate_file and key_file must be .* and '.*other.key': .*MISMATCH"),
        ({"key_file": None}, "certificate_file and key_file must be PEM files that fit, got .* and None"),
        ({"ca_file": "{}/good.key"}, "ca_file must be PEM files that fit, got '.*good.key'"),
        ({"certificate_file": None}, "certificate_file must be given with key_file or ca_file, got None"),
    ],
)
def test_files_that_do_not_fit_are_named_before_a_role_starts(
    changed: dict[str, str | None], message: str, files: Path, tmp_path: Path
) -> None:
    given = {name: value and value.format(files) for name, value in changed.items()}
    config = config_of(tmp_path, **{**tls_of(files), **given})

    def begin() -> None:
        FlaskTransport().check(config)
        FlaskTransport().make_secret(config)

    with pytest.raises(ValueError, match=message):
        begin()
    assert not (tmp_path / "run").exists()


def test_worker_needs_neither_certificate_nor_key(files: Path, tmp_path: Path) -> None:
    there = {"certificate_file": "/none/coordinator.pem", "key_file": "/none/coordinator.key"}
    with serving(config_of(tmp_path, **tls_of(files))):
        elsewhere = config_of(tmp_path, **{**tls_of(files), **there})
        FlaskTransport().check(elsewhere)
        assert call(elsewhere) == {"name": "connect"}


def test_key_may_be_in_the_file_of_the_certificate(files: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text((files / "good.pem").read_text() + (files / "good.key").read_text())
    config = config_of(tmp_path, certificate_file=str(both), ca_file=str(files / "good.pem"))
    with serving(config):
        assert call(config) == {"name": "connect"}


def test_key_with_a_passphrase_is_refused_instead_of_asked_for_at_the_terminal(files: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    key = ["openssl", "pkcs8", "-topk8", "-in", str(files / "good.key"), "-out", str(locked), "-passout", "pass:secret"]
    subprocess.run(key, check=True, capture_output=True)
    config = config_of(tmp_path, **{**tls_of(files), "key_file": str(locked)})
    with pytest.raises(ValueError, match=f"key_file must be a key without a passphrase, got '{locked}'"):
        server_tls(config.system.coordinator)


def test_key_that_others_can_read_is_a_warning(files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = tmp_path / "open.key"
    shutil.copy(files / "good.key", key)
    config = config_of(tmp_path, **{**tls_of(files), "key_file": str(key)}).system.coordinator
    key.chmod(0o600)
    server_tls(config)
    assert caplog.messages == []
    key.chmod(0o644)
    server_tls(config)
    assert caplog.messages == [f"{key} can be read by other users than its owner; chmod 600 keeps the key secret"]


def test_silent_connections_without_a_handshake_make_room_for_workers(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "allowed_connections", lambda: 5)
    config = config_of(tmp_path, **tls_of(files))
    with serving(config) as server, ExitStack() as held:
        worker = FlaskTransport().connect(config)
        held.callback(worker.close)
        assert worker.call("connect") == {"name": "connect"}
        silent = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(12)]
        for connection in silent:
            held.callback(connection.close)
        assert call(config) == {"name": "connect"}
        assert worker.call("heartbeat") == {"name": "heartbeat"}
        for connection in silent[:8]:  # the oldest
            connection.settimeout(2.0)
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
