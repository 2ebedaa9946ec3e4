"""Storage of observations that are stacks of frames: each frame once, even if several stacks contain it.

Shapes: E entries, n of them written or read, S frames of a stack.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding.worker.buffer.columns import Columns, ObsColumn, Rows
from lightning_ding.worker.buffer.memory import Memory

ONE = np.int32(1)  # the type of the array that it is added to, because other types are far slower


class StackedFrames(ObsColumn):
    """An entry holds the indices of S frames in a pool. A frame is stored once, even if several stacks contain it.

    Shared frames are found by comparison, so every observation is returned as it was written. A frame that is in no
    entry any more is overwritten. The pool initially has space for one frame per row, and grows by a quarter when
    episodes are so short that their first stacks do not fit.

    The constructor takes a batch of observations of shape (n, S, ...).
    """

    def __init__(self, entries: int, like: NDArray[Any], memory: Memory) -> None:
        self._memory = memory
        self._stack = like.shape[1]
        room = entries // 2 + entries // 32 + 64 * self._stack
        self._pool = memory.zeros((room, *like.shape[2:]), like.dtype)
        self._shown = np.zeros(room, dtype=np.int32)  # number of places in entries that hold a frame
        self._free: Rows = np.empty(0, dtype=np.int64)
        self._fresh = 0  # index of the first frame that was never written
        self._number = memory.zeros((entries, self._stack), np.int32)

    @override
    def write_rows(self, where: slice | Rows, rows: Rows, obs: NDArray[Any], known: Rows, slots: Rows) -> None:
        """Copy the announced stacks, and store the other ones frame by frame; equal neighbours are one frame."""
        self._number[rows[known]] = self._number[slots]
        is_other = np.ones(len(rows), dtype=bool)
        is_other[known] = False
        if is_other.any():
            stacks = obs[is_other]
            is_new = np.ones(stacks.shape[:2], dtype=bool)
            is_new[:, 1:] = _differ(stacks[:, 1:], stacks[:, :-1])
            numbers = self._put(stacks[is_new])[np.cumsum(is_new).reshape(is_new.shape) - 1]
            self._show(rows[is_other], numbers)

    @override
    def write_slots(self, slots: Rows, next_obs: NDArray[Any], rows: Rows) -> None:
        """Store next observations; a frame that was one place later in the stacks of ``rows`` is reused."""
        before = self._number[rows]
        numbers = np.roll(before, -1, axis=1)
        is_new = np.ones(numbers.shape, dtype=bool)
        is_new[:, :-1] = _differ(next_obs[:, :-1], self._pool[numbers[:, :-1]])
        numbers[is_new] = self._put(next_obs[is_new])
        self._show(slots, numbers)

    @override
    def read(self, entries: Rows) -> NDArray[Any]:
        return self._pool.take(self._number.take(entries, axis=0), axis=0)

    @override
    def release(self, entries: Rows) -> None:
        numbers = self._number[entries].ravel()
        np.subtract.at(self._shown, numbers, ONE)
        unshown = np.unique(numbers[self._shown[numbers] == 0])
        self._free = np.concatenate([self._free, unshown])

    @override
    def nbytes(self, rows: int, slots: int) -> int:
        """Return the bytes that hold observations, including the indices of their frames."""
        return self._pool[: self._fresh].nbytes + self._number[: rows + slots].nbytes

    @override
    def state(self, rows: int, slots: slice) -> Columns:
        pool = {"pool": self._pool[: self._fresh], "shown": self._shown[: self._fresh], "free": self._free}
        return {"row": self._number[:rows], "slot": self._number[slots], **pool}

    @override
    def load(self, state: Columns, rows: int, slots: slice) -> None:
        self._number[:rows], self._number[slots] = state["row"], state["slot"]
        self._fresh, self._free = len(state["pool"]), state["free"].astype(np.int64)
        self._grow_to(self._fresh)
        self._pool[: self._fresh], self._shown[: self._fresh] = state["pool"], state["shown"]

    def _put(self, frames: NDArray[Any]) -> Rows:
        """Store frames and return their indices."""
        numbers = self._take(len(frames))
        self._pool[numbers] = frames
        return numbers

    def _show(self, entries: Rows, numbers: NDArray[Any]) -> None:
        """Set the indices of the frames of entries, shape (n, S)."""
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
