"""One message to the coordinator of a distributed run; its answer is printed as JSON.

    lightning-ding ask status --config FILE
    lightning-ding ask increase_collector '{"n": 2}' --config FILE
    lightning-ding ask shutdown --config FILE --host 10.0.0.1 --port 5000

The exit code is 0 after an answer, 1 after a refusal or none, 2 for a wrong command or config.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.errors import CoordinatorGoneError, Refusal
from lightning_ding.distributed.workers import flask_channel
from lightning_ding.entry.roles import Parser, add_address

MESSAGES = ("status", "increase_collector", "decrease_collector", "shutdown")
PATIENCE = 10.0  # seconds for an answer


def main(arguments: Sequence[str]) -> None:
    """Ask, and print the answer.

    Args:
        arguments: Behind ``ask``.

    Raises:
        SystemExit: If there is no good answer.
    """
    parser = Parser(prog="lightning-ding ask", description=__doc__)
    parser.add_argument("name", choices=MESSAGES, metavar="MESSAGE", help=", ".join(MESSAGES))
    parser.add_argument("content", nargs="?", default="{}", metavar="JSON", help='such as {"n": 2}')
    add_address(parser, "where the coordinator listens")
    options = parser.parse_args(list(arguments))
    cfg, content = parser.read(options), _parse(parser, options.content)
    if cfg.system.transport != "flask_fs":
        parser.error("`ask` is for system.transport 'flask_fs'")
    try:
        answer = _ask(cfg, options.host, options.port, options.name, content)
    except (ValueError, ImportError, OSError) as error:
        parser.error(str(error))
    except (Refusal, CoordinatorGoneError) as error:
        print("error:", error, file=sys.stderr)
        raise SystemExit(1) from error
    print(json.dumps(answer, indent=1))


def _ask(cfg: ParallelConfig, host: str | None, port: int | None, name: str, content: dict[str, Any]) -> dict[str, Any]:
    patience = min(PATIENCE, cfg.system.reconnect_timeout)
    cfg = dataclasses.replace(cfg, system=dataclasses.replace(cfg.system, reconnect_timeout=patience))
    channel = flask_channel(cfg, host, port)
    try:
        return channel.call(name, content)
    finally:
        channel.close()


def _parse(parser: Parser, text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        parser.error(f"{text!r} is no JSON: {error}")
    if not isinstance(content, dict):
        parser.error(f'a message must be a JSON object, such as {{"n": 2}}, got {text!r}')
    return content
