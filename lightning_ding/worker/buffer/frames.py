"""How one leaf of the observations is kept: as it is, or as a stack of frames each of which is kept once.

An *entry* is the place of one observation. Entry i of the first C belongs to row i of the ring, the others are the
spare slots of next observations.

Shapes: E entries, n of them written or read, S frames of a stack.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.worker.buffer.form import Columns, Rows
from lightning_ding.worker.buffer.memory import Memory

ONE = np.int32(1)  # of the type that it is added to: another would be far slower


class Frames(ABC):
    """Observations of one leaf by entry."""

    @abstractmethod
    def write_rows(self, where: slice | Rows, rows: Rows, obs: NDArray[Any], known: Rows, slots: Rows) -> None:
        """Keep the observations of new rows.

        Args:
            where: The rows, as a slice where that is possible.
            rows: The rows, shape (n,).
            obs: Their observations, leading axis n.
            known: Which of the n were announced by the row before them.
            slots: The entries where these stand; they are free from now on.
        """

    @abstractmethod
    def write_slots(self, slots: Rows, next_obs: NDArray[Any], rows: Rows) -> None:
        """Keep the next observations of ``rows`` in ``slots``, all of shape (n, ...)."""

    @abstractmethod
    def read(self, entries: Rows) -> NDArray[Any]:
        """Return a copy of the observations, leading axes those of ``entries``."""

    @abstractmethod
    def release(self, entries: Rows) -> None:
        """Forget entries that nobody will read again."""

    @abstractmethod
    def nbytes(self, rows: int, slots: int) -> int:
        """Return the bytes that hold observations, with so many rows and spare slots in use."""

    @abstractmethod
    def state(self, rows: int, slots: slice) -> Columns:
        """Return what is in use."""

    @abstractmethod
    def load(self, state: Columns, rows: int, slots: slice) -> None:
        """Take what ``state`` returned."""


class PlainFrames(Frames):
    """Every entry holds its observation.

    Args:
        entries: E.
        like: A batch of observations.
        memory: Where to keep them.
    """

    def __init__(self, entries: int, like: NDArray[Any], memory: Memory) -> None:
        self._values = memory.zeros((entries, *like.shape[1:]), like.dtype)

    def write_rows(self, where: slice | Rows, rows: Rows, obs: NDArray[Any], known: Rows, slots: Rows) -> None:
        """Keep the observations of new rows."""
        self._values[where] = obs

    def write_slots(self, slots: Rows, next_obs: NDArray[Any], rows: Rows) -> None:
        """Keep next observations."""
        self._values[slots] = next_obs

    def read(self, entries: Rows) -> NDArray[Any]:
        """Return a copy of the observations."""
        return self._values.take(entries, axis=0)

    def release(self, entries: Rows) -> None:
        """Do nothing: an entry is simply written again."""

    def nbytes(self, rows: int, slots: int) -> int:
        """Return the bytes that hold observations."""
        return self._values[: rows + slots].nbytes

    def state(self, rows: int, slots: slice) -> Columns:
        """Return what is in use."""
        return {"row": self._values[:rows], "slot": self._values[slots]}

    def load(self, state: Columns, rows: int, slots: slice) -> None:
        """Take what ``state`` returned."""
        self._values[:rows] = state["row"]
        self._values[slots] = state["slot"]


class StackedFrames(Frames):
    """An entry holds S numbers of frames in a pool; a frame is kept once, however many stacks show it.

    What follows is found by comparing, so whatever is written is what is read. A frame that no entry shows any more is
    written over. The pool begins with room for a frame of every row and grows by a quarter when episodes are so short
    that their first stacks do not fit.

    Args:
        entries: E, twice the rows.
        like: A batch of observations, shape (n, S, ...).
        memory: Where to keep the frames.
    """

    def __init__(self, entries: int, like: NDArray[Any], memory: Memory) -> None:
        self._memory = memory
        self._stack = like.shape[1]
        room = entries // 2 + entries // 32 + 64 * self._stack
        self._pool = memory.zeros((room, *like.shape[2:]), like.dtype)
        self._shown = np.zeros(room, dtype=np.int32)  # how many places of entries show a frame
        self._free: Rows = np.empty(0, dtype=np.int64)
        self._fresh = 0  # the first frame never written
        self._number = memory.zeros((entries, self._stack), np.int32)

    def write_rows(self, where: slice | Rows, rows: Rows, obs: NDArray[Any], known: Rows, slots: Rows) -> None:
        """Take over the announced stacks, and keep the other ones frame by frame; equal neighbours are one frame."""
        self._number[rows[known]] = self._number[slots]
        is_other = np.ones(len(rows), dtype=bool)
        is_other[known] = False
        if is_other.any():
            stacks = obs[is_other]
            is_new = np.ones(stacks.shape[:2], dtype=bool)
            is_new[:, 1:] = _differ(stacks[:, 1:], stacks[:, :-1])
            numbers = self._put(stacks[is_new])[np.cumsum(is_new).reshape(is_new.shape) - 1]
            self._show(rows[is_other], numbers)

    def write_slots(self, slots: Rows, next_obs: NDArray[Any], rows: Rows) -> None:
        """Keep next observations; where a frame stood one place further back in ``rows``, it is that frame."""
        before = self._number[rows]
        numbers = np.roll(before, -1, axis=1)
        is_new = np.ones(numbers.shape, dtype=bool)
        is_new[:, :-1] = _differ(next_obs[:, :-1], self._pool[numbers[:, :-1]])
        numbers[is_new] = self._put(next_obs[is_new])
        self._show(slots, numbers)

    def read(self, entries: Rows) -> NDArray[Any]:
        """Return a copy of the stacks."""
        return self._pool.take(self._number.take(entries, axis=0), axis=0)

    def release(self, entries: Rows) -> None:
        """Forget entries, and frames that nobody shows any more."""
        numbers = self._number[entries].ravel()
        np.subtract.at(self._shown, numbers, ONE)
        unshown = np.unique(numbers[self._shown[numbers] == 0])
        self._free = np.concatenate([self._free, unshown])

    def nbytes(self, rows: int, slots: int) -> int:
        """Return the bytes that hold observations, the numbers of their frames included."""
        return self._pool[: self._fresh].nbytes + self._number[: rows + slots].nbytes

    def state(self, rows: int, slots: slice) -> Columns:
        """Return what is in use."""
        pool = {"pool": self._pool[: self._fresh], "shown": self._shown[: self._fresh], "free": self._free}
        return {"row": self._number[:rows], "slot": self._number[slots], **pool}

    def load(self, state: Columns, rows: int, slots: slice) -> None:
        """Take what ``state`` returned."""
        self._number[:rows], self._number[slots] = state["row"], state["slot"]
        self._fresh, self._free = len(state["pool"]), state["free"].astype(np.int64)
        self._grow_to(self._fresh)
        self._pool[: self._fresh], self._shown[: self._fresh] = state["pool"], state["shown"]

    def _put(self, frames: NDArray[Any]) -> Rows:
        """Keep frames and return their numbers."""
        numbers = self._take(len(frames))
        self._pool[numbers] = frames
        return numbers

    def _show(self, entries: Rows, numbers: NDArray[Any]) -> None:
        """Let entries show the frames with these numbers, shape (n, S)."""
        self._number[entries] = numbers
        np.add.at(self._shown, numbers.ravel(), ONE)

    def _take(self, amount: int) -> Rows:
        kept = max(0, len(self._free) - amount)
        used, self._free = self._free[kept:], self._free[:kept]
        more = amount - len(used)
        self._grow_to(self._fresh + more)
        self._fresh += more
        return np.concatenate([used, np.arange(self._fresh - more, self._fresh)])

    def _grow_to(self, length: int) -> None:
        if length > len(self._pool):
            room = max(length, len(self._pool) * 5 // 4)
            self._pool = self._memory.grown(self._pool, room)
            self._shown = np.concatenate([self._shown, np.zeros(room - len(self._shown), dtype=np.int32)])


def _differ(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether frames differ, shape (n, S), for frames of shape (n, S, ...)."""
    differs: NDArray[np.bool_] = (left != right).reshape(*left.shape[:2], -1).any(axis=2)
    return differs
