"""Checksums and encodings of the values of variables that envs share."""

from __future__ import annotations

import enum
import hashlib
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from lightning_ding.envs.state import attributes
from lightning_ding.envs.state.codec import to_plain
from lightning_ding.envs.state.memo import Coded, Memo, NotPlainError, is_tensor, size_of
from lightning_ding.envs.state.variables import GONE

SHARED = (list, dict, set, deque, np.ndarray, np.random.Generator, np.random.RandomState, random.Random)
"""Objects that an env may share with a variable, so that a change of one changes the other."""
DEPTH, LARGEST = 50, 20_000  # levels and objects of other classes of which a fingerprint is computed
VALUES = (type(None), bool, int, float, complex, str, bytes, np.generic, enum.Enum)
COPIED = 1_000_000  # bytes of a value that is kept to restore it


def copies(value: Any, label: str) -> Iterator[Coded]:
    """Yield an encoding of a value unless it is large or no plain data."""
    if value is GONE:
        yield {"kind": "gone"}
        return
    with suppress(NotPlainError):
        coded = to_plain(value, label, Memo())
        if size_of(coded) < COPIED:
            yield coded


def fingerprint(value: Any) -> bytes:
    """Return a checksum of everything in a value that Python can see."""
    return _Fingerprint().of(value)


class _Fingerprint:
    """The objects of which a checksum was computed.

    Args:
        seen: Numbers of objects that were seen before.
    """

    def __init__(self, seen: Iterable[int] = ()) -> None:
        self._seen = set(seen)
        self._objects = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def of(self, value: Any, depth: int = 0) -> bytes:
        """Return the checksum of a value, around which are ``depth`` objects."""
        self._add(value, depth)
        return self._digest.digest()

    def _add(self, value: Any, depth: int) -> None:
        self._digest.update(f"{type(value).__qualname__};".encode())
        if isinstance(value, VALUES):
            self._digest.update(repr(value).encode())
            return
        self._objects += not isinstance(value, (*SHARED, tuple, frozenset))
        if id(value) in self._seen or depth > DEPTH or self._objects > LARGEST:
            return
        self._seen.add(id(value))
        if isinstance(value, (set, frozenset)):
            self._digest.update(b"".join(sorted(_Fingerprint(self._seen).of(one, depth + 1) for one in value)))
        elif isinstance(value, np.ndarray) and value.dtype != object:
            self._digest.update(f"{value.shape}{value.dtype}".encode() + value.tobytes())
        else:
            for part in _parts(value):
                self._add(part, depth + 1)


def _parts(value: Any) -> list[Any]:
    """Return the objects that a value consists of."""
    if is_tensor(value):
        return [value.dtype, *value.shape, value.detach().cpu().reshape(-1).view(sys.modules["torch"].uint8).numpy()]
    if isinstance(value, np.random.Generator):
        return [value.bit_generator.state]
    if isinstance(value, np.random.RandomState):
        return [value.get_state(legacy=False)]
    if isinstance(value, random.Random):
        return [value.getstate()]
    if isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
        return [value.__self__]
    if isinstance(value, (type, types.ModuleType, types.FunctionType)):
        return [value.__name__]
    items: list[Any] = list(value.reshape(-1)) if isinstance(value, np.ndarray) else []
    if isinstance(value, dict):
        items = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, deque)):
        items = list(value)
    held = attributes(value)
    return [*items, *held, *held.values()]
