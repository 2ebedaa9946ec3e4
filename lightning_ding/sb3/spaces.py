"""The spaces in the JSON of a model: the text of their attributes, or of their ``repr``, read by a strict grammar.

A space is stored as ``{":type:": "<class 'gymnasium.spaces.box.Box'>", ":serialized:": <pickle>, "_shape": [3], "low":
"[-1. -1. -8.]", ...}``. Those of gym, which older models have, look the same. Arrays of more than a thousand numbers
may be abbreviated there. Of an image of bytes they are read as one number if all that are shown are equal, since the
bounds of images are; any other space then has to come from elsewhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

CLASS = re.compile(r"<class '(?:gym|gymnasium)\.spaces\.\w+\.(\w+)'>")
DTYPE = re.compile(r"(?:<class 'numpy\.)?((?:u?int|float)\d+|bool)(?:_?'>)?")
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|inf|nan)")
ENTRY = re.compile(r"\(?\s*(?P<quote>['\"])(?P<key>[^'\"]*)(?P=quote)\s*[:,]\s*(?P<kind>\w+)\(")
AFTER = re.compile(r"\s*(?:,\s*|$)")
AFTER_PAIR = re.compile(r"\s*\)?(?:,\s*|$)")
BRACKET = re.compile(r"[(){}\[\]]")
LONGEST = 40
"""Characters of a number; matching the pattern takes the square of its length."""
LARGEST = 10_000_000
"""Entries of the largest box, and choices of the largest discrete space; networks are made for them."""


class UnreadableSpaceError(ValueError):
    """A space of which the file holds only a pickle, or an abbreviated text."""


def read_space(described: Any, name: str) -> spaces.Space[Any]:
    """Return a space of a model.

    Args:
        described: Its entry in the JSON.
        name: Name of the entry, for errors.

    Raises:
        UnreadableSpaceError: If the text does not describe the space completely.

    Example:
        >>> entry = {":type:": "<class 'gymnasium.spaces.box.Box'>", "dtype": "float32", "_shape": [2]}
        >>> read_space({**entry, "low": "[-1. -1.]", "high": "[1. inf]"}, "observation_space")
        Box(-1.0, [ 1. inf], (2,), float32)
    """
    try:
        if not isinstance(described, Mapping):
            raise UnreadableSpaceError(f"{name} is missing")
        found = CLASS.fullmatch(str(described.get(":type:")))
        if found is None or found[1] not in READERS:
            raise UnreadableSpaceError(f"{name} is of the type {described.get(':type:')}")
        return READERS[found[1]](described)
    except (ValueError, TypeError, KeyError, AssertionError, OverflowError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UnreadableSpaceError(
            f"the text of {name} in the file does not describe the space ({reason}), and the pickle beside it is not "
            "read: pass spaces=(env.observation_space, env.action_space), or --env_id to the command"
        ) from error


def _box(described: Mapping[str, Any]) -> spaces.Box:
    shape = tuple(int(size) for size in described["_shape" if "_shape" in described else "shape"])
    _check_size(math.prod(shape))
    kind = _dtype(described["dtype"])
    low, high = (_bound(described, name, shape, kind) for name in ("low", "high"))
    return spaces.Box(low, high, shape, kind.type)


def _bound(described: Mapping[str, Any], name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    short = described.get(f"{name}_repr")
    text = short if isinstance(short, str) and len(short) <= LONGEST and NUMBER.fullmatch(short) else described[name]
    return _array(str(text), shape, kind)


def _array(text: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return the array that a text shows: one number for all entries, or one for each.

    Raises:
        ValueError: If it is abbreviated, but for equal bytes, or anything else.
    """
    tokens = text.replace("[", " ").replace("]", " ").replace(",", " ").split()
    if "..." in tokens and kind == np.uint8:
        tokens = list({token for token in tokens if token != "..."})
    if not all(len(token) <= LONGEST and NUMBER.fullmatch(token) for token in tokens):
        raise ValueError(f"{text[:40]!r} is no array of numbers")
    values = [float(token) for token in tokens]
    if len(values) not in (1, math.prod(shape)):
        raise ValueError(f"{len(values)} numbers for the shape {shape}")
    exact = [int(value) for value in values] if kind.kind in "iub" else values
    return np.broadcast_to(np.array(exact, kind), (math.prod(shape),)).reshape(shape)


def _dtype(text: Any) -> np.dtype[Any]:
    found = DTYPE.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is no type of numbers")
    return np.dtype(found[1])


def _integers(value: Any) -> list[int]:
    """Return integers of ``3``, ``"3"``, ``[3, 2]``, ``"[3 2]"`` or ``"(3, 2)"``."""
    text = str(value).strip("()[]").replace(",", " ")
    return [int(token) for token in text.split()]


def _check_size(size: int) -> None:
    if size > LARGEST:
        raise ValueError(f"{size} entries are too many")


def _discrete(described: Mapping[str, Any]) -> spaces.Discrete:
    (number,), (start,) = _integers(described["n"]), _integers(described.get("start", 0))
    _check_size(number)
    return spaces.Discrete(number, start=start)


def _multi_discrete(described: Mapping[str, Any]) -> spaces.MultiDiscrete:
    sizes = _integers(described["nvec"])
    _check_size(sum(sizes))
    start = _integers(described["start"]) if described.get("start") is not None else [0] * len(sizes)
    return spaces.MultiDiscrete(np.array(sizes), start=np.array(start))


def _multi_binary(described: Mapping[str, Any]) -> spaces.MultiBinary:
    sizes = _integers(described["n"])
    _check_size(math.prod(sizes))
    return spaces.MultiBinary(sizes[0] if len(sizes) == 1 else sizes)


def _dict(described: Mapping[str, Any]) -> spaces.Dict:
    return spaces.Dict(list(_entries(str(described["spaces"]))))


READERS = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Dict": _dict,
}
"""Readers of the spaces by the names of their classes."""


# ---------------------------------------------------------------------- the repr of spaces


def _entries(text: str) -> Iterator[tuple[str, spaces.Space[Any]]]:
    """Yield the entries of a text such as ``{'a': Box(-1.0, 1.0, (3,), float32), 'b': Discrete(2)}``, in order.

    Raises:
        ValueError: If it is anything else.
    """
    text = text.strip()
    for start, end in (("OrderedDict([", "])"), ("OrderedDict({", "})"), ("{", "}")):
        if text.startswith(start) and text.endswith(end):
            rest = text[len(start) : -len(end)].strip()
            break
    else:
        raise ValueError(f"{text[:40]!r} is no dict")
    place = 0
    while place < len(rest):
        found = ENTRY.match(rest, place)
        if found is None:
            raise ValueError(f"{rest[place : place + 40]!r} is no entry")
        end_of_arguments = _closing(rest, found.end())
        yield found["key"], _from_repr(found["kind"], _split(rest[found.end() : end_of_arguments]))
        after = (AFTER_PAIR if found[0].startswith("(") else AFTER).match(rest, end_of_arguments + 1)
        if after is None:
            raise ValueError(f"{rest[end_of_arguments + 1 : end_of_arguments + 41]!r} after an entry")
        place = after.end()


def _closing(text: str, begin: int) -> int:
    """Return the index of the bracket that closes one opened before ``begin``."""
    depth = 1
    for found in BRACKET.finditer(text, begin):
        depth += 1 if found[0] in "([{" else -1
        if depth == 0:
            return found.start()
    raise ValueError("a bracket is not closed")


def _split(text: str) -> list[str]:
    """Return the arguments of a call, split at its own commas."""
    places, depth = [-1], 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            places.append(place)
    parts = (text[begin + 1 : end].strip() for begin, end in pairwise([*places, len(text)]))
    return [part for part in parts if part]


def _from_repr(kind: str, arguments: list[str]) -> spaces.Space[Any]:
    """Return the space whose ``repr`` is a call of ``kind`` with these arguments."""
    named = dict(part.split("=", 1) for part in arguments if "=" in part)
    plain = [part for part in arguments if "=" not in part]
    if kind == "Box" and len(plain) == 4 and not named:
        low, high, shape, dtype = plain
        return _box({"low": low, "high": high, "shape": _integers(shape), "dtype": dtype})
    names = {"Discrete": "n", "MultiDiscrete": "nvec", "MultiBinary": "n"}
    if kind in names and len(plain) == 1 and named.keys() <= {"start"}:
        return READERS[kind]({names[kind]: plain[0], **named})
    raise ValueError(f"{kind}({', '.join(arguments)}) is no known space")
