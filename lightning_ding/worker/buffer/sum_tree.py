"""A sum tree, for drawing leaves in proportion to their weights, that also tracks the smallest and largest weight.

It is wide and flat: blocks of 8 leaves, which share a line of the processor's cache, groups of 8 blocks, and a
cumulative sum over all groups. Drawing finds the group in the sum and descends two levels. Without numba a level is a
set of array operations. With numba a compiled loop does the same additions and comparisons in the same order, so the
results are equal to the last bit.

Shapes: n leaves written or drawn.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.worker.buffer.columns import Rows

Floats = NDArray[np.float64]
Write = Callable[[Floats, Floats, Floats, Floats, Floats, Floats, Floats, Rows], None]
Find = Callable[[Floats, Floats, Floats, Floats], Rows]
FAN_OUT = 8


class SumTree:
    """Weights >= 0 by leaf; a leaf of weight 0 is never drawn.

    Args:
        capacity: Number of leaves, >= 1.
        compiled: Whether to use compiled loops, which need numba; None does if numba is installed.

    Example:
        >>> tree = SumTree(5)
        >>> tree.write(np.array([1, 4]), np.array([1.0, 3.0]))
        >>> tree.total, tree.smallest, tree.find(np.array([0.0, 0.3, 0.99])).tolist()
        (4.0, 1.0, [1, 4, 4])
    """

    def __init__(self, capacity: int, compiled: bool | None = None) -> None:
        self.capacity = capacity
        groups = -(-capacity // FAN_OUT**2)
        self._groups = groups
        self._write, self._find = _kernels(compiled)
        self.clear()

    def clear(self) -> None:
        """Set every weight to 0."""
        groups, blocks = self._groups, self._groups * FAN_OUT  # pages of zeros cost no memory until they are written
        self._group, self._group_min, self._group_max = np.zeros((3, groups))
        self._block, self._block_min, self._block_max = np.zeros((3, blocks))
        self._leaf: Floats = np.zeros(blocks * FAN_OUT)
        self._used = 0  # groups that were ever written; the others are never read
        self._use_groups(1)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that were ever written, and of their sums and extremes."""
        return self._used * (3 + 3 * FAN_OUT + FAN_OUT**2) * self._leaf.itemsize

    def write(self, rows: Rows, weights: Floats | float) -> None:
        """Set the weights of leaves; if a leaf occurs twice, the last one counts."""
        if self._used < self._groups and len(rows):
            self._use_groups(int(rows.max()) // FAN_OUT**2 + 1)
        self._leaf[rows] = weights
        extremes = (self._group_min, self._block_min, self._group_max, self._block_max)
        self._write(self._group, self._block, self._leaf, *extremes, rows)

    def read(self, rows: Any) -> Floats:
        """Return the weights of leaves."""
        weights: Floats = self._leaf[rows]
        return weights

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._group[: self._used].cumsum()[-1])

    @property
    def smallest(self) -> float:
        """The smallest weight above 0; infinity if there is none."""
        return float(self._group_min[: self._used].min())

    @property
    def largest(self) -> float:
        """The largest weight."""
        return float(self._group_max[: self._used].max())

    def find(self, fraction: Floats) -> Rows:
        """Return the leaves whose shares of the cumulative sum contain the given fractions of the total.

        Args:
            fraction: Fractions of the total, in [0, 1), shape (n,).

        Raises:
            ValueError: If all weights are 0.
        """
        rows = self._find(self._group[: self._used], self._block, self._leaf, fraction)
        if not len(rows) and len(fraction):
            raise ValueError("a sum tree needs a weight above 0 to draw from, got none")
        return rows

    def _use_groups(self, amount: int) -> None:
        """Mark the first ``amount`` groups as used, if they are not yet."""
        if amount > self._used:
            self._group_min[self._used : amount] = np.inf
            self._block_min[self._used * FAN_OUT : amount * FAN_OUT] = np.inf
            self._used = amount


def _kernels(compiled: bool | None) -> tuple[Write, Find]:
    if compiled is None:
        compiled = importlib.util.find_spec("numba") is not None
    if not compiled:
        return _write, _find
    from lightning_ding.worker.buffer import sum_tree_numba  # takes a second to import

    return sum_tree_numba.write, sum_tree_numba.find


def _write(
    group: Floats,
    block: Floats,
    leaf: Floats,
    group_min: Floats,
    block_min: Floats,
    group_max: Floats,
    block_max: Floats,
    rows: Rows,
) -> None:
    """Update the blocks and groups above some leaves."""
    above = rows // FAN_OUT
    weight = leaf.reshape(-1, FAN_OUT)[above]
    block[above] = weight.cumsum(axis=1)[:, -1]  # in the order in which a loop adds
    block_min[above] = np.where(weight > 0, weight, np.inf).min(axis=1)
    block_max[above] = weight.max(axis=1)
    top = above // FAN_OUT
    group[top] = block.reshape(-1, FAN_OUT)[top].cumsum(axis=1)[:, -1]
    group_min[top] = block_min.reshape(-1, FAN_OUT)[top].min(axis=1)
    group_max[top] = block_max.reshape(-1, FAN_OUT)[top].max(axis=1)


def _find(group: Floats, block: Floats, leaf: Floats, fraction: Floats) -> Rows:
    """Return the leaves that contain fractions of the total; none if the total is 0."""
    cumulative = group.cumsum()
    total = cumulative[-1]
    if not total > 0:
        return np.empty(0, dtype=np.int64)
    rest = fraction * total
    node: Rows = np.minimum(cumulative.searchsorted(rest, side="right"), np.flatnonzero(group)[-1])
    rest = rest - np.where(node > 0, cumulative[node - 1], 0.0)
    for weights in (block, leaf):
        weight = weights.reshape(-1, FAN_OUT)[node]
        within = weight.cumsum(axis=1)
        is_above = within > rest[:, None]
        last = FAN_OUT - 1 - (weight[:, ::-1] > 0).argmax(axis=1)  # rounding must not select a weight of 0
        place = np.where(is_above[:, -1], is_above.argmax(axis=1), last)
        rest = rest - np.where(place > 0, within[np.arange(len(place)), place - 1], 0.0)
        node = node * FAN_OUT + place
    return node
