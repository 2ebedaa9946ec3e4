"""Memo of the objects in a state: an object that is referenced several times is saved and restored once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

Coded = Any
"""None, a bool, a number, a string, or a dict with ``kind``; only tensors and builtins."""
TRIES = 10_000
NUMBER = 8  # bytes


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor, without importing torch, which env processes do not need."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def size_of(coded: Coded) -> int:
    """Return the approximate number of bytes of an encoding."""
    total, rest = 0, [coded]
    while rest:
        one = rest.pop()
        if is_tensor(one) or isinstance(one, np.ndarray):
            total += int(one.nbytes)
        elif isinstance(one, (list, tuple, dict)):
            rest += one.values() if isinstance(one, dict) else one
        else:
            total += len(one) if isinstance(one, (str, bytes)) else NUMBER
    return total


class NotPlainError(TypeError):
    """An object is not plain data; the message names the object and its type."""


class MemoryRange(NamedTuple):
    """The range of addresses of an array or tensor."""

    low: int
    high: int
    path: str
    array: Any


class Memo:
    """The objects that were found while a state is read.

    Args:
        layers: Envs and wrappers whose state is read; methods bound to them are constants.
        read_parts: Function ``(value, path, memo, depth)`` that returns the encoding of an object of an unknown class,
            or None; by default there is none.
    """

    def __init__(self, layers: Iterable[Any] = (), read_parts: Callable[..., Coded] | None = None) -> None:
        self.layers = tuple(layers)
        self.read_parts = read_parts
        self._coded: dict[int, tuple[Any, Coded]] = {}  # keeps the objects alive, so that no id is reused
        self._memory: list[MemoryRange] = []
        self._numbers = 0

    def once(self, value: Any, path: str, read: Callable[[], Coded]) -> Coded:
        """Return the encoding of an object: its content from ``read`` the first time, a reference to it afterwards.

        Raises:
            NotPlainError: If the object, named ``path``, contains itself.
        """
        if id(value) not in self._coded:
            self._coded[id(value)] = (value, None)
            coded = read()
            self._coded[id(value)] = (value, coded)
            if isinstance(value, np.ndarray) or is_tensor(value):
                self._memory.append(_memory_of(value, path))
            return coded
        coded = self._coded[id(value)][1]
        if coded is None:
            raise NotPlainError(f"{path} contains itself")
        if "number" not in coded:
            coded["number"] = self._numbers
            self._numbers += 1
        return {"kind": "same", "as": coded["number"]}

    def begin(self, value: Any, coded: Coded) -> None:
        """Let what an object contains refer to the object, whose encoding is filled later."""
        self._coded[id(value)] = (value, coded)

    @contextmanager
    def copies(self) -> Iterator[None]:
        """Allow objects that are read within the context to share memory with others."""
        before = len(self._memory)
        yield
        del self._memory[before:]

    def check_memory(self) -> None:
        """Raise ``NotPlainError`` if two arrays or tensors share memory, which their restored copies would not do."""
        ordered = sorted((one for one in self._memory if one.high > one.low), key=lambda one: one.low)
        for place, one in enumerate(ordered):
            for later in ordered[place + 1 :]:
                if later.low >= one.high:
                    break
                if _overlap(one, later):
                    raise NotPlainError(f"{later.path} shares memory with {one.path}")


def _memory_of(value: Any, path: str) -> MemoryRange:
    if is_tensor(value):
        size, start = value.element_size(), value.data_ptr()
        strides = [step * size for step in value.stride()]
    else:
        size, start, strides = value.itemsize, value.__array_interface__["data"][0], value.strides
    ends = [(length - 1) * step for length, step in zip(value.shape, strides, strict=True)]
    low, high = start + sum(end for end in ends if end < 0), start + sum(end for end in ends if end > 0) + size
    is_empty = 0 in value.shape
    return MemoryRange(low, low if is_empty else high, path, value)


def _overlap(one: MemoryRange, other: MemoryRange) -> bool:
    """Return whether a change of one may change the other, for overlapping ranges of addresses."""
    if not (isinstance(one.array, np.ndarray) and isinstance(other.array, np.ndarray)):
        return True
    if not (one.array.flags.writeable or other.array.flags.writeable):
        return False
    try:
        return np.shares_memory(one.array, other.array, max_work=TRIES)  # type: ignore[arg-type]  # any number
    except np.exceptions.TooHardError:
        return True
