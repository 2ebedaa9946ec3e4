"""Reading what a message says: each field is of its type and in its range, or the message is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lightning_ding.distributed.channel import Kind
from lightning_ding.distributed.errors import Refusal

LARGEST = 2**53  # the largest integer that every reader of JSON takes as it is
LONGEST = 10_000


def text(message: Mapping[str, Any], name: str) -> str:
    """Return a string of at most 10000 characters.

    Raises:
        Refusal: 400, if it is none.
    """
    value = message.get(name)
    _require(isinstance(value, str) and 0 < len(value) <= LONGEST, name, "a string that is not empty", value)
    return str(value)


def whole(message: Mapping[str, Any], name: str, least: int = 0) -> int:
    """Return an integer >= ``least``.

    Raises:
        Refusal: 400, if it is none.
    """
    value = message.get(name)
    good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST
    _require(good, name, f"an integer >= {least}", value)
    return int(value)  # type: ignore[arg-type]


def number(message: Mapping[str, Any], name: str) -> float:
    """Return a finite number.

    Raises:
        Refusal: 400, if it is none.
    """
    value = message.get(name)
    _require(_is_number(value), name, "a finite number", value)
    return float(value)  # type: ignore[arg-type]


def flag(message: Mapping[str, Any], name: str) -> bool:
    """Return a truth value.

    Raises:
        Refusal: 400, if it is none.
    """
    value = message.get(name)
    _require(isinstance(value, bool), name, "true or false", value)
    return bool(value)


def handle(message: Mapping[str, Any], name: str, kind: Kind) -> Any:
    """Return the handle of a block of this kind, or None; one of another kind is not for its sender to use up.

    Raises:
        Refusal: 400, if it is something else.
    """
    value = message.get(name)
    good = value is None or (isinstance(value, Mapping) and value.get("kind") == kind)
    _require(good, name, f"the handle of a {kind} block or null", value)
    return value


def mapping(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a dict with string keys.

    Raises:
        Refusal: 400, if it is none.
    """
    value = message.get(name)
    good = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    _require(good, name, "an object", value)
    return dict(value)  # type: ignore[arg-type]


def numbers(message: Mapping[str, Any], name: str) -> list[float]:
    """Return a list of finite numbers; an empty one if there is none.

    Raises:
        Refusal: 400, if it is something else.
    """
    value = message.get(name, [])
    _require(isinstance(value, list) and all(map(_is_number, value)), name, "a list of finite numbers", value)
    return [float(item) for item in value]


def wholes(message: Mapping[str, Any], name: str, limit: int = LARGEST) -> list[int]:
    """Return a list of integers in [0, limit); an empty one if there is none.

    Raises:
        Refusal: 400, if it is something else.
    """
    value = message.get(name, [])
    good = isinstance(value, list) and all(_is_whole(item) and 0 <= item < limit for item in value)
    _require(good, name, f"a list of integers in [0, {limit})", value)
    return list(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= LARGEST
    return isinstance(value, float) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(condition: bool, name: str, allowed: str, got: Any) -> None:
    if not condition:
        raise Refusal(400, f"{name} must be {allowed}, got {str(got)[:100]!r}")
