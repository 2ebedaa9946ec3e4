"""The server accepts valid messages, answers all others with status 4xx and a reason, and keeps running."""

from __future__ import annotations

import json
import logging
import socket
import string
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import requests
from hypothesis import given, settings, strategies as st

from lightning_ding.distributed.flask_fs.connections import SparseLog
from lightning_ding.distributed.flask_fs.server import FlaskServer
from lightning_ding.distributed.transport import LeaseLostError, Message, Refusal
from tests.processes import wait_for

FUZZ = settings(max_examples=150, deadline=None, derandomize=True)
TOKEN = "0123456789abcdef"
GOOD = {"Authorization": f"Bearer {TOKEN}", "X-Lightning-Ding-Channel": "3", "Content-Type": "application/json"}
MAX_MESSAGE = 2000


def handler(name: str, message: Message) -> Message:
    """Answer as a coordinator would."""
    if name == "echo":
        return message
    if name in ("break", "break_too"):
        raise RuntimeError("the secret of the coordinator")
    if name == "nan":
        return {"loss": float("nan")}
    if name == "lost":
        raise LeaseLostError("another has it")
    raise Refusal(404, "no such message")


@pytest.fixture(scope="module")
def server() -> Iterator[FlaskServer]:
    server = FlaskServer(handler, token=TOKEN, channel=3, max_message=MAX_MESSAGE)
    server.start()
    yield server
    server.close()


def url(server: FlaskServer, path: str = "echo") -> str:
    return f"http://127.0.0.1:{server.port}/{path}"


def send(server: FlaskServer, path: str = "echo", body: Any = b"{}", method: str = "POST", **headers: Any) -> Any:
    given = {**GOOD, **{name.replace("_", "-"): value for name, value in headers.items()}}
    kept = {name: value for name, value in given.items() if value is not None}
    return requests.request(method, url(server, path), data=body, headers=kept, timeout=10, allow_redirects=False)


def raw(server: FlaskServer, content: bytes) -> tuple[int, Any]:
    """Send bytes and return the status and the content of the answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(content)
        answer = b""
        with suppress(ConnectionResetError):  # after an answer to a request that was not read completely
            while part := connection.recv(4096):
                answer += part
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(rest)


def assert_refused(response: Any, status: int, server: FlaskServer) -> None:
    """Check that an answer is a refusal with a reason, and that the server keeps running."""
    content = response.json()
    assert response.status_code == content["code"] == status
    assert content["success"] is False
    assert isinstance(content["message"], str)
    assert content["message"]
    assert content["data"] == {}
    assert_answers(server)


def assert_answers(server: FlaskServer) -> None:
    answer = send(server, body=b'{"a": [1, 2.5, null, "\xc3\xa9"]}')
    assert answer.json() == {"success": True, "code": 200, "message": "", "data": {"a": [1, 2.5, None, "é"]}}


PATHS = ["echo", "break", "none", "", "a/b", "static/x", "..%2f..%2fetc", "%00"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
@pytest.mark.parametrize("token", [None, "", f"Bearer {TOKEN}x", "Bearer", TOKEN, f"Basic {TOKEN}", "Bearer é"])
def test_without_the_token_nothing_is_answered_on_any_method_and_path(
    method: str, token: str | None, server: FlaskServer
) -> None:
    for path in PATHS:
        assert send(server, path, method=method, Authorization=token and token.encode()).status_code == 401
    assert_answers(server)


def test_a_wrong_channel_is_refused(server: FlaskServer) -> None:
    for channel in (None, "", "4", "03", "3 3", "x" * 1000):
        assert_refused(send(server, X_Lightning_Ding_Channel=channel), 403, server)


def test_only_json_that_is_posted_and_comes_from_no_web_page_is_taken(server: FlaskServer) -> None:
    for kind in (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"):
        assert_refused(send(server, Content_Type=kind), 415, server)
    assert_refused(send(server, Origin="http://127.0.0.1"), 403, server)
    for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        assert_refused(send(server, method=method), 405, server)
    assert send(server, Content_Type="application/json; charset=utf-8").status_code == 200


@pytest.mark.parametrize("path", ["", "none", "echo/", "echo/echo", "Echo", "__class__x", "e" * 65, "%2e%2e"])
def test_an_unknown_message_is_refused(path: str, server: FlaskServer) -> None:
    response = send(server, path, method="POST")
    assert_refused(response, 404, server)


BAD_BODIES = [
    b"", b"{", b"nonsense", b"\xff\xfe", b"[1]", b"3", b"null", b'"x"', b"{'a': 1}", b"{} {}",
    b'{"a": NaN}', b'{"a": Infinity}', b'{"a": [-Infinity]}', b'{"a": 1e999}', b'{"a": 18446744073709551616}',
    b'{"a": ' + b"9" * 1000 + b"}", b"[" * 1900, b'{"a":' * 300, b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}",
    b"\x80\x04\x95\x00pickle",
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:20]))
def test_a_body_that_is_no_plain_json_object_is_refused(body: bytes, server: FlaskServer) -> None:
    assert_refused(send(server, body=body), 400, server)


def test_numbers_at_the_limits_are_taken(server: FlaskServer) -> None:
    numbers = [2**64 - 1, -(2**63), 1.7e308, -0.5]
    assert send(server, body=json.dumps({"a": numbers})).json()["data"] == {"a": numbers}


def test_a_message_may_have_so_many_bytes_and_not_one_more(server: FlaskServer) -> None:
    body = b'{"a": "' + b"x" * (MAX_MESSAGE - 9) + b'"}'
    assert len(body) == MAX_MESSAGE
    assert send(server, body=body).status_code == 200
    assert_refused(send(server, body=body + b" "), 413, server)
    assert_refused(send(server, body=iter([body, b" "])), 413, server)  # in chunks, with no length said before
    assert_refused(send(server, body=body * 1000), 413, server)


def test_a_message_that_is_too_large_is_refused_before_it_is_sent(server: FlaskServer) -> None:
    status, content = raw(server, b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n")
    assert (status, content["code"], content["success"]) == (413, 413, False)
    assert content["message"] == f"a message must have at most {MAX_MESSAGE} bytes"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"y" * 20_000 + b"\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
    ids=["nonsense", "negative", "two lengths", "long header", "tls"],
)
def test_what_is_no_http_gets_a_reason_too(content: bytes, status: int, server: FlaskServer) -> None:
    found, answer = raw(server, content)
    assert (found, answer["code"], answer["success"]) == (status, status, False)
    assert answer["message"]
    assert_answers(server)


def test_body_in_malformed_chunks_is_refused(server: FlaskServer) -> None:
    head = "".join(f"{name}: {value}\r\n" for name, value in {**GOOD, "Transfer-Encoding": "chunked"}.items())
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        # in one piece: aiohttp does not tell about a piece that comes later, whose connection is closed after a while
        connection.sendall(f"POST /echo HTTP/1.1\r\nHost: x\r\n{head}\r\n1\r\n{{\r\nnonsense\r\n".encode())
        assert connection.recv(1000).split()[1] == b"400"
    assert_answers(server)


def test_silent_or_incomplete_connection_does_not_block_others(server: FlaskServer) -> None:
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    for connection in connections[::2]:
        connection.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
    assert_answers(server)
    for connection in connections:
        connection.close()
    assert_answers(server)


def test_an_exception_of_the_handler_is_logged_and_answered_without_its_text(
    server: FlaskServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert_refused(response := send(server, "break"), 500, server)
    assert response.json()["message"] == "RuntimeError in the coordinator; see its log"
    assert "the secret of the coordinator" in caplog.text
    assert "Traceback" in caplog.text
    assert_refused(send(server, "nan"), 500, server)


def test_a_flood_of_the_same_exception_is_logged_once_in_an_interval(
    server: FlaskServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_ding.distributed.flask_fs.server._refusals", SparseLog(logging.getLogger(), 3600))
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            assert_refused(send(server, "break"), 500, server)
        assert_refused(send(server, "nan"), 500, server)
        assert_refused(send(server, "break_too"), 500, server)
    assert [record.getMessage() for record in caplog.records] == [
        f"the message '/{name}' failed" for name in ("break", "nan", "break_too")
    ]
    assert all(record.exc_info for record in caplog.records)


def test_a_refusal_comes_with_its_status_and_reason(server: FlaskServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        response = send(server, "lost")
    assert (response.status_code, response.json()["message"]) == (409, "another has it")
    assert "another has it" in caplog.text


HEADER = st.text(string.printable.strip(), max_size=30)
BODY = st.binary(max_size=300) | st.sampled_from(BAD_BODIES) | st.text(max_size=100).map(str.encode)


@FUZZ
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS"]),
    path=st.sampled_from(["echo", "none"]) | st.text(string.ascii_letters + "%./?#;=_", max_size=20),
    token=st.sampled_from([GOOD["Authorization"], None]) | HEADER,
    channel=st.sampled_from(["3", "3", None]) | HEADER,
    kind=st.sampled_from(["application/json"]) | HEADER,
    body=BODY,
)
def test_whatever_is_sent_the_door_stays_open(
    method: str, path: str, token: Any, channel: Any, kind: str, body: bytes, server: FlaskServer
) -> None:
    headers = {"Authorization": token, "X_Lightning_Ding_Channel": channel, "Content_Type": kind}
    response = send(server, path, body, method, **headers)
    content = response.json()
    assert content["code"] == response.status_code
    if response.status_code != 200:
        assert 400 <= response.status_code < 500
        assert content["message"]
        assert_answers(server)
    else:
        assert (method, path.split("?")[0].split("#")[0], token, channel) == (
            "POST",
            "echo",
            GOOD["Authorization"],
            "3",
        )
        assert content["data"] == json.loads(body)


LINES = (b"POST /echo HTTP/1.1", b"GET / HTTP/1.1", b"POST", b"Host: x", b"Content-Length: 4", b"Content-Length: x",
         b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"", b": x")  # fmt: skip
LINE = st.sampled_from(LINES)


@settings(FUZZ, max_examples=60)
@given(st.lists(LINE | st.binary(max_size=20), max_size=6), st.binary(max_size=20))
def test_whatever_bytes_are_sent_the_door_stays_open(server: FlaskServer, lines: list[bytes], body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"\r\n".join([*lines, b"", body]))
    assert_answers(server)


def test_without_a_token_everybody_on_this_machine_is_let_in_and_others_are_not_listened_to() -> None:
    server = FlaskServer(handler)
    server.start()
    answer = requests.post(
        url(server), json={"a": 1}, headers={"X-Lightning-Ding-Channel": "0", "Authorization": "Bearer x"}, timeout=10
    )
    assert answer.json()["data"] == {"a": 1}
    server.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", socket.gethostname(), "::ffff:0.0.0.0", "0", "192.0.2.1"])
def test_it_refuses_to_listen_for_other_machines_without_a_token(host: str) -> None:
    if host == socket.gethostname() and socket.gethostbyname(host).startswith("127."):
        pytest.skip("this machine's name means itself alone")
    with pytest.raises(ValueError, match="host must be a loopback address unless there is a token"):
        FlaskServer(handler, host)


@pytest.mark.parametrize("token", [None, ""])
def test_an_empty_token_is_no_token(token: str | None) -> None:
    with pytest.raises(ValueError, match="must be"):
        FlaskServer(handler, "0.0.0.0", token=token)


@pytest.mark.parametrize("arguments", [{"host": ""}, {"host": "no such host"}, {"port": -1}, {"port": 65536}])
def test_an_address_that_is_none_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be"):
        FlaskServer(handler, **arguments)


def test_with_a_token_it_listens_for_all() -> None:
    server = FlaskServer(handler, "0.0.0.0", token=TOKEN, channel=3)
    server.start()
    assert_answers(server)
    server.close()


def test_a_port_that_is_taken_is_an_error_that_names_it(server: FlaskServer) -> None:
    with pytest.raises(OSError, match=f"127.0.0.1 port {server.port}"):
        FlaskServer(handler, port=server.port)


def test_close_lets_an_answer_out_and_frees_the_port_and_the_threads() -> None:
    threads = threading.active_count()
    entered, leave = threading.Event(), threading.Event()

    def slow(name: str, message: Message) -> Message:
        entered.set()
        assert leave.wait(10)
        return {"name": name}

    server = FlaskServer(slow, token=TOKEN, channel=3)
    server.start()
    answers: list[Any] = []
    caller = threading.Thread(target=lambda: answers.append(send(server, "slow").json()))
    caller.start()
    assert entered.wait(10)
    threading.Timer(0.2, leave.set).start()
    server.close()
    server.close()
    caller.join(10)
    assert answers[0]["data"] == {"name": "slow"}
    with pytest.raises(requests.ConnectionError):
        send(server)
    again = FlaskServer(handler, port=server.port, token=TOKEN, channel=3)
    again.start()
    assert_answers(again)
    again.close()
    wait_for(lambda: threading.active_count() <= threads)


def test_a_server_that_was_never_started_can_be_closed() -> None:
    server = FlaskServer(handler)
    server.close()
    FlaskServer(handler, port=server.port).close()


def test_close_does_not_mind_that_the_loop_of_the_server_has_ended() -> None:
    server = FlaskServer(handler, token=TOKEN)
    server.start()
    assert server._is_running.wait(10)
    assert server._loop is not None
    server._loop.call_soon_threadsafe(server._stop.set)
    server._thread.join(10)
    assert not server._thread.is_alive()
    assert server._loop.is_closed()
    server.close()
    server.close()
