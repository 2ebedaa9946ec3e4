"""What has several names in a state, so that it is one thing again when the state is put back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

Coded = Any
"""None, a bool, a number, a string, or a dict with ``kind``; tensors and builtins only."""
TRIES = 10_000


class NotPlainError(TypeError):
    """Something is not plain data; the message says where and what."""


class Memory(NamedTuple):
    """Where an array or tensor lies."""

    low: int
    high: int
    path: str
    array: Any


class Met:
    """What was met while a state is read.

    Args:
        layers: The envs and wrappers that are read; what is bound to them is constant by nature.
    """

    def __init__(self, layers: Iterable[Any] = ()) -> None:
        self.layers = tuple(layers)
        self._coded: dict[int, tuple[Any, Coded]] = {}  # holds what was met, so that no id is used again
        self._memory: list[Memory] = []
        self._numbers = 0

    def once(self, value: Any, path: str, read: Callable[[], Coded]) -> Coded:
        """Return what is written of something: itself the first time, and later which one it is.

        Raises:
            NotPlainError: If it holds itself.
        """
        if id(value) not in self._coded:
            self._coded[id(value)] = (value, None)
            coded = read()
            self._coded[id(value)] = (value, coded)
            if isinstance(value, (np.ndarray, torch.Tensor)):
                self._memory.append(_memory_of(value, path))
            return coded
        coded = self._coded[id(value)][1]
        if coded is None:
            raise NotPlainError(f"{path} holds itself")
        if "number" not in coded:
            coded["number"] = self._numbers
            self._numbers += 1
        return {"kind": "same", "as": coded["number"]}

    @contextmanager
    def copies(self) -> Iterator[None]:
        """Let what is read inside lie in the memory of something else, because it may as well be a copy."""
        before = len(self._memory)
        yield
        del self._memory[before:]

    def check_memory(self) -> None:
        """Raise if two arrays or tensors have memory in common, which two copies of them would not.

        Raises:
            NotPlainError: If so; the message names both.
        """
        ordered = sorted((one for one in self._memory if one.high > one.low), key=lambda one: one.low)
        for place, one in enumerate(ordered):
            behind = place + 1
            while behind < len(ordered) and ordered[behind].low < one.high:
                if _overlap(one, ordered[behind]):
                    raise NotPlainError(f"{ordered[behind].path} shares memory with {one.path}")
                behind += 1


def _memory_of(value: Any, path: str) -> Memory:
    if isinstance(value, torch.Tensor):
        size, start = value.element_size(), value.data_ptr()
        strides = [step * size for step in value.stride()]
    else:
        size, start, strides = value.itemsize, value.__array_interface__["data"][0], value.strides
    ends = [(length - 1) * step for length, step in zip(value.shape, strides, strict=True)]
    low, high = start + sum(end for end in ends if end < 0), start + sum(end for end in ends if end > 0) + size
    is_empty = 0 in value.shape
    return Memory(low, low if is_empty else high, path, value)


def _overlap(one: Memory, other: Memory) -> bool:
    """Return whether a change of one may change the other, if their bounds overlap."""
    if not (isinstance(one.array, np.ndarray) and isinstance(other.array, np.ndarray)):
        return True
    if not (one.array.flags.writeable or other.array.flags.writeable):
        return False
    try:
        return np.shares_memory(one.array, other.array, max_work=TRIES)  # type: ignore[arg-type]  # any number
    except np.exceptions.TooHardError:
        return True
