"""The channel of a worker: answers, immediate refusals, and retries while the coordinator is unreachable."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.flask_fs.channel import FlaskChannel
from lightning_ding.distributed.flask_fs.server import FlaskServer
from lightning_ding.distributed.transport import CoordinatorGoneError, Handler, LeaseLostError, Message, Refusal
from tests.processes import run

TOKEN = "0123456789abcdef"


def echo(name: str, message: Message) -> Message:
    return {"name": name, **message}


@contextmanager
def serving(handler: Handler, **arguments: Any) -> Iterator[FlaskServer]:
    server = FlaskServer(handler, **arguments)
    server.start()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def calling(folder: Path, port: int | None = None, **arguments: Any) -> Iterator[FlaskChannel]:
    host = None if port is None else "127.0.0.1"
    channel = FlaskChannel(folder, host, port, **{"reconnect_timeout": 30.0, **arguments})
    try:
        yield channel
    finally:
        channel.close()


def write_address(folder: Path, **content: Any) -> None:
    (folder / "coordinator.json").write_text(json.dumps(content))


def test_a_message_and_its_answer_go_through(tmp_path: Path) -> None:
    message = {"seq": 3, "returns": [1.5, -2.0], "data_id": {"kind": "data"}, "text": "é\n", "none": None}
    with (
        serving(echo, token=TOKEN, channel=7) as server,
        calling(tmp_path, server.port, token=TOKEN, channel=7) as channel,
    ):
        assert channel.call("collector_data_task", message) == {"name": "collector_data_task", **message}
        assert channel.call("status") == {"name": "status"}


def test_many_threads_can_call_at_a_time(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def wait_for_all(name: str, message: Message) -> Message:
        together.wait(20)
        return message

    found: list[Any] = []
    with serving(wait_for_all) as server, calling(tmp_path, server.port) as channel:
        threads = [
            threading.Thread(target=lambda i=i: found.append(channel.call("task", {"i": i})["i"])) for i in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert sorted(found) == list(range(8))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 426])
def test_a_refusal_comes_at_once_and_as_it_was_meant(status: int, tmp_path: Path) -> None:
    calls = []

    def refuse(name: str, message: Message) -> Message:
        calls.append(name)
        raise Refusal(status, "because of é")

    with serving(refuse) as server, calling(tmp_path, server.port) as channel, pytest.raises(Refusal) as caught:
        channel.call("task")
    assert (caught.value.status, caught.value.reason, calls) == (status, "because of é", ["task"])
    assert not isinstance(caught.value, LeaseLostError)


def test_expired_lease_raises_a_separate_error(tmp_path: Path) -> None:
    def refuse(name: str, message: Message) -> Message:
        raise LeaseLostError("another has it")

    with (
        serving(refuse) as server,
        calling(tmp_path, server.port) as channel,
        pytest.raises(LeaseLostError, match="another has it"),
    ):
        channel.call("task")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [({"token": "f" * 16, "channel": 1}, 401), ({"channel": 1}, 401), ({"token": TOKEN, "channel": 2}, 403)],
)
def test_a_wrong_token_or_channel_is_no_reason_to_try_again(arguments: Any, status: int, tmp_path: Path) -> None:
    with serving(echo, token=TOKEN, channel=1) as server, calling(tmp_path, server.port, **arguments) as channel:
        for _ in range(2):
            with pytest.raises(Refusal) as caught:
                channel.call("task")
            assert caught.value.status == status


def test_too_large_message_is_refused_and_not_retried(tmp_path: Path) -> None:
    with serving(echo, max_message=1000) as server, calling(tmp_path, server.port) as channel:
        for size in (2000, 5_000_000):
            with pytest.raises(Refusal) as caught:
                channel.call("task", {"text": "x" * size})
            assert caught.value.status == 413
        assert channel.call("task") == {"name": "task"}


def test_what_is_no_json_is_not_sent(tmp_path: Path) -> None:
    with calling(tmp_path, 9) as channel:
        with pytest.raises(ValueError, match="JSON"):
            channel.call("task", {"loss": float("nan")})
        with pytest.raises(TypeError, match="JSON"):
            channel.call("task", {"data": torch.zeros(1)})


def test_a_handler_that_fails_is_asked_again(tmp_path: Path) -> None:
    calls = []

    def fail_twice(name: str, message: Message) -> Message:
        calls.append(message)
        if len(calls) < 3:
            raise RuntimeError("not yet")
        return {"calls": len(calls)}

    with serving(fail_twice) as server, calling(tmp_path, server.port) as channel:
        assert channel.call("task", {"seq": 1}) == {"calls": 3}
    assert calls == [{"seq": 1}] * 3


def test_a_coordinator_that_never_answers_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    with serving(echo) as server:
        port = server.port
    with calling(tmp_path, port, reconnect_timeout=0.5) as channel:
        begin = time.monotonic()
        with pytest.raises(CoordinatorGoneError, match=r"no answer to 'task' in 0\.5 s"):
            channel.call("task")
        assert time.monotonic() - begin >= 0.5


def test_an_answer_that_does_not_come_is_waited_for_no_longer_than_the_timeout(tmp_path: Path) -> None:
    end = threading.Event()

    def hang(name: str, message: Message) -> Message:
        end.wait(20)
        return {}

    with serving(hang) as server, calling(tmp_path, server.port, reconnect_timeout=0.5) as channel:
        with pytest.raises(CoordinatorGoneError, match="timed out"):
            channel.call("task")
        end.set()


def test_a_coordinator_that_starts_again_elsewhere_is_found_by_its_file(tmp_path: Path) -> None:
    """Nothing is there at first, then one answers, then it goes and another comes at another port."""
    found: list[Message] = []
    with calling(tmp_path) as channel:

        def call_three_times() -> None:
            for _ in range(3):
                found.append(channel.call("task"))
                called.release()
                assert go_on.acquire(timeout=20)

        called, go_on = threading.Semaphore(0), threading.Semaphore(0)
        caller = threading.Thread(target=call_three_times)
        caller.start()
        for number in range(3):
            with serving(lambda name, message, number=number: {"number": number}) as server:  # type: ignore[misc]
                write_address(tmp_path, host="127.0.0.1", port=server.port, pid=1)
                assert called.acquire(timeout=20)
            go_on.release()
        caller.join(20)
    assert found == [{"number": 0}, {"number": 1}, {"number": 2}]


def test_a_host_or_a_port_that_is_given_goes_before_the_files(tmp_path: Path) -> None:
    with serving(echo) as server:
        write_address(tmp_path, host="unreachable.invalid", port=server.port)
        channel = FlaskChannel(tmp_path, host="127.0.0.1", reconnect_timeout=5)
        assert channel.call("task") == {"name": "task"}
        channel.close()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"host": "127.0.0.1"}', '{"host": "a/b@c", "port": 1}', '{"host": 1, "port": "x"}'],
)
def test_a_file_that_does_not_say_where_the_coordinator_is_names_itself(content: str, tmp_path: Path) -> None:
    (tmp_path / "coordinator.json").write_text(content)
    with (
        calling(tmp_path, reconnect_timeout=0.2) as channel,
        pytest.raises(CoordinatorGoneError, match=r"coordinator\.json"),
    ):
        channel.call("task")


class Stranger(BaseHTTPRequestHandler):
    """Another program that has taken the coordinator's port."""

    reply = (200, b"hello")

    def do_POST(self) -> None:
        """Answer."""
        status, body = self.reply
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:1/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    "reply",
    [(200, b"hello"), (404, b"<html>"), (302, b""), (204, b""), (200, b"[]"), (200, b'{"code": 404, "data": {}}')],
)
def test_what_another_program_answers_counts_as_no_answer(reply: Any, tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Other", (Stranger,), {"reply": reply}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        port = server.server_address[1]
        with calling(tmp_path, port, reconnect_timeout=0.3) as channel, pytest.raises(CoordinatorGoneError):
            channel.call("task")
    finally:
        server.shutdown()
        server.server_close()


def test_close_ends_a_call_that_waits_and_refuses_later_ones(tmp_path: Path) -> None:
    with calling(tmp_path) as channel:
        threading.Timer(0.3, channel.close).start()
        for _ in range(2):
            with pytest.raises(CoordinatorGoneError, match="closed"):
                channel.call("task")


def test_proxies_and_passwords_of_the_environment_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with serving(echo, token=TOKEN) as server, calling(tmp_path, server.port, token=TOKEN) as channel:
        assert channel.call("task") == {"name": "task"}


def test_tensors_are_exchanged_through_the_folder_and_not_in_messages(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "data")

    def total(name: str, message: Message) -> Message:
        return {"total": float(store.get(message["data_id"]).tensors["x"].sum())}

    with serving(total) as server, calling(tmp_path, server.port) as channel:
        handle = channel.store.put("data", {"x": torch.arange(4.0)})
        assert channel.call("collector_data_task", {"data_id": handle}) == {"total": 6.0}
        with pytest.raises(Refusal) as caught:
            channel.call("collector_data_task", {"data_id": {"kind": "data", "name": "../x"}})
    assert caught.value.status == 403


@pytest.mark.parametrize(
    "arguments",
    [{"host": ""}, {"host": "a/b"}, {"host": "a b"}, {"port": 0}, {"port": 65536}, {"reconnect_timeout": 0}],
)
def test_an_argument_out_of_its_range_is_named(arguments: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be"):
        FlaskChannel(tmp_path, **arguments)


def test_who_connects_with_another_folder_than_the_coordinators_is_refused(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "shared" / "data")
    store.mark()
    with serving(echo, mark=store.mark()) as server:
        with calling(tmp_path / "other", server.port) as channel:
            assert channel.call("status") == {"name": "status"}
            with pytest.raises(Refusal, match=r"403: main.exp_name='.*other', .* is not the folder") as caught:
                channel.call("connect")
            assert caught.value.status == 403
            assert not (tmp_path / "other").exists()
        with calling(tmp_path / "shared", server.port) as channel:
            assert channel.call("connect") == {"name": "connect"}
        store.mark()  # the mark of a later coordinator
        with calling(tmp_path / "shared", server.port) as channel, pytest.raises(Refusal, match="is not the folder"):
            channel.call("connect")


IMPORTS = """
import sys
sys.modules["aiohttp"] = None
import lightning_ding.distributed, lightning_ding.entry
print(lightning_ding.distributed.FlaskChannel.__name__)
try:
    import lightning_ding.distributed.flask_fs.server
except ImportError as error:
    print(error)
try:
    lightning_ding.distributed.FlaskChanel
except AttributeError as error:
    print(error)
print(lightning_ding.entry.parallel_pipeline.__name__)
"""


def test_the_channel_is_exported_and_only_the_server_needs_an_extra() -> None:
    assert run("-c", IMPORTS).splitlines() == [
        "FlaskChannel",
        "flask_fs needs aiohttp: pip install lightning_ding[flask]",
        "module 'lightning_ding.distributed' has no attribute 'FlaskChanel'",
        "parallel_pipeline",
    ]


def test_request_is_sent_with_one_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    send_all = socket.socket.sendall

    def note(connection: socket.socket, data: Any) -> None:
        sent.append(bytes(data))
        send_all(connection, data)

    with serving(echo) as server, calling(tmp_path, server.port) as channel:
        channel.call("echo", {"a": 1})
        monkeypatch.setattr(socket.socket, "sendall", note)
        assert channel.call("echo", {"a": 2}) == {"name": "echo", "a": 2}
        (request,) = [data for data in sent if data.startswith(b"POST") or b'"a"' in data]
        assert request.endswith(b'{"a": 2}')


def test_coordinator_at_an_address_of_ipv6_is_called(tmp_path: Path) -> None:
    try:
        server = FlaskServer(echo, "::1")
    except (OSError, ValueError):
        pytest.skip("this machine has no IPv6")
    server.start()
    channel = FlaskChannel(tmp_path, "::1", server.port, reconnect_timeout=5)
    assert channel.call("task") == {"name": "task"}
    channel.close()
    server.close()
