"""The door of a coordinator: ``POST /<name>`` with a JSON object, from who bears the token, and nothing else."""

from __future__ import annotations

import hmac
import json
import logging
import math
import re
from typing import Any, NoReturn

from lightning_ding.distributed.channel import Handler, Message
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.flask_fs import CHANNEL_HEADER, MARK_HEADER, NEEDS_FLASK

try:
    from flask import Flask, Response, request
    from werkzeug.exceptions import HTTPException
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(NEEDS_FLASK, name=error.name) from error

NAME = re.compile(r"[a-z_]{1,64}")
MAX_DEPTH = 32
"""Lists and objects within each other that a message may have."""

logger = logging.getLogger(__name__)


def make_app(handler: Handler, token: str | None, channel: int, max_message: int, mark: str | None = None) -> Flask:
    """Return the WSGI app that hands messages to ``handler``.

    Every answer is ``{success, code, message, data}``: ``code`` is the HTTP status, ``message`` a reason for people.
    The token and the channel are asked for on every method and path. A browser cannot be made to send what is taken
    here: it would have to ask for leave to send JSON, and what comes from a page is refused for its ``Origin``.

    Args:
        handler: Answers messages; what it raises that is no ``Refusal`` is logged and becomes a 500.
        token: Of ``Authorization: Bearer <token>``; None asks for none.
        channel: Of ``X-Lightning-Ding-Channel``.
        max_message: Bytes that a message may have.
        mark: Of the folder of the run, see :meth:`FileStore.mark`; answers bear it. None for none.
    """
    app = Flask(__name__, static_folder=None, template_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = max_message
    app.url_map.merge_slashes = False  # it would answer with a redirect

    @app.before_request
    def check_sender() -> None:
        _check_sender(token, channel)

    @app.route("/<name>", methods=["POST"], provide_automatic_options=False)
    def message(name: str) -> Response:
        if not NAME.fullmatch(name):
            raise Refusal(404, "there is no message of this name")
        if request.mimetype != "application/json":
            raise Refusal(415, f"the content type must be application/json, got {request.mimetype[:100]!r}")
        response = _response(200, "", handler(name, parse_message(request.get_data(cache=False))))
        if mark is not None:
            response.headers[MARK_HEADER] = mark
        return response

    app.register_error_handler(Refusal, _refused)
    app.register_error_handler(HTTPException, lambda error: _refused(Refusal(error.code or 400, str(error.name))))
    app.register_error_handler(Exception, _failed)
    return app


def answer(status: int, reason: str, data: Message | None = None) -> bytes:
    """Return the JSON of an answer.

    Raises:
        ValueError: If the data holds a number that is not finite.
        TypeError: If it holds what JSON has not.
    """
    content = {"success": status == 200, "code": status, "message": reason[:500], "data": data or {}}
    return json.dumps(content, allow_nan=False).encode()


def parse_message(body: bytes) -> Message:
    """Return the JSON object that a body is.

    Raises:
        Refusal: With 400, if it is none, is too deep, or has a number that is not finite or an integer over 64 bits.
    """
    try:
        message = json.loads(body.decode(), parse_constant=_refuse, parse_float=_float, parse_int=_int)
    except ValueError as error:
        raise Refusal(400, f"the body must be JSON: {str(error)[:200]}") from error
    except RecursionError as error:
        raise Refusal(400, f"the body must be JSON of at most {MAX_DEPTH} levels") from error
    if not isinstance(message, dict):
        raise Refusal(400, f"the body must be a JSON object, got {type(message).__name__}")
    level: list[Any] = [message]
    for _ in range(MAX_DEPTH):
        level = [below for value in level for below in _below(value)]
        if not level:
            return message
    raise Refusal(400, f"the body must be JSON of at most {MAX_DEPTH} levels")


def _check_sender(token: str | None, channel: int) -> None:
    if token is not None:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise Refusal(401, "no token, or a wrong one")
    if "Origin" in request.headers:
        raise Refusal(403, "messages from web pages are not taken")
    given = request.headers.get(CHANNEL_HEADER, "")
    if given != str(channel):
        raise Refusal(403, f"the channel must be {channel}, got {given[:20]!r}")


def _response(status: int, reason: str, data: Message | None = None) -> Response:
    return Response(answer(status, reason, data), status, mimetype="application/json")


def _refused(refusal: Refusal) -> Response:
    level = logging.WARNING if refusal.status in (401, 403) else logging.INFO
    logger.log(level, "refused %r of %s: %s", request.path[:100], request.remote_addr, refusal)
    return _response(refusal.status, refusal.reason)


def _failed(error: Exception) -> Response:
    logger.error("the message %r failed", request.path[:100], exc_info=error)
    return _response(500, f"{type(error).__name__} in the coordinator; its log says more")


def _below(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"numbers must be finite, got {constant}")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse(text[:20])
    return number


def _int(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**64:
        raise ValueError(f"integers must have at most 64 bits, got {text[:20]}...")
    return int(text)
