"""Transitions that stay in a ring but are never drawn again: those of episodes that were broken off by a fault.

Shapes: C rows of the ring.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_ding.worker.buffer.form import Rows


class DroppedRows:
    """The rows that were dropped and have not been overwritten since.

    Args:
        capacity: C, >= 1.

    Example:
        >>> dropped = DroppedRows(4)
        >>> dropped.add(np.array([1, 2]))
        >>> dropped.count, dropped.without(np.arange(4)).tolist(), dropped.release(np.array([0, 1])).tolist()
        (2, [0, 3], [0])
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.count = 0
        self.mask: NDArray[np.bool_] | None = None
        """True where a row is dropped, shape (C,); None when none is, as mostly, so that it costs a look at this."""

    def add(self, rows: Rows) -> None:
        """Drop rows, none of which is dropped already."""
        if not len(rows):
            return
        if self.mask is None:
            self.mask = np.zeros(self._capacity, dtype=bool)
        self.mask[rows] = True
        self.count += len(rows)

    def release(self, rows: Rows) -> Rows:
        """Note that rows are overwritten or cleared; return those of them that were not dropped."""
        if self.mask is None:
            return rows
        was_there = self.without(rows)
        self.mask[rows] = False
        self.count -= len(rows) - len(was_there)
        if not self.count:
            self.mask = None
        return was_there

    def without(self, rows: Rows) -> Rows:
        """Return those of some rows that are not dropped."""
        return rows if self.mask is None else rows[~self.mask[rows]]

    def rows(self) -> Rows:
        """Return the rows that are dropped, in order."""
        return np.empty(0, dtype=np.int64) if self.mask is None else np.flatnonzero(self.mask)

    def load(self, rows: Rows) -> None:
        """Take what :meth:`rows` of a ring as large returned."""
        self.count, self.mask = 0, None
        self.add(rows)
