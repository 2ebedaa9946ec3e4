"""A sum tree, for drawing leaves in proportion to their weights, that also tracks the smallest and largest weight.

It is wide and flat: blocks of 8 leaves, which share a line of the processor's cache, groups of 8 blocks, and a
cumulative sum over all groups; above 4,096 groups there are further levels. Drawing finds the node of the top level in
the sum and descends. Without numba a level is a set of array operations. With numba a compiled loop does the same
additions and comparisons in the same order, so the results are equal to the last bit.

Shapes: n leaves written or drawn, L levels above the leaves, M nodes of all levels.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.worker.buffer.columns import Rows

Floats = NDArray[np.float64]
Write = Callable[[Floats, Rows, Floats, Rows], None]
Find = Callable[[Floats, Rows, Floats, int, Floats], Rows]
FAN_OUT = 8
MOST_AT_TOP = 4096  # nodes of the top level, which every draw reads
SUM, LEAST, MOST = range(3)  # what is known of a node; the least weight is 0 if no weight is above 0


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
        levels, top = 2, -(-capacity // FAN_OUT**2)
        while top > MOST_AT_TOP:
            levels, top = levels + 1, -(-top // FAN_OUT)
        self._top = top
        self._below_top = FAN_OUT**levels  # leaves below a node of the top level
        self._begins: Rows = np.cumsum([0, *(top * FAN_OUT**level for level in range(levels))])  # from the top
        self._leaves = top * self._below_top
        self._write, self._find = _kernels(compiled)
        self.clear()

    def clear(self) -> None:
        """Set every weight to 0."""
        self._nodes: Floats = np.zeros((3, int(self._begins[-1])))  # pages of zeros cost no memory until written
        self._leaf: Floats = np.zeros(self._leaves)
        self._used = 1  # nodes of the top level below which there ever was a weight; the others are never read
        self._largest: float | None = 0.0  # None if it is not known

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that were ever written, and of their sums and extremes."""
        share = self._used / self._top
        return round(share * (self._nodes.nbytes + self._leaf.nbytes))

    def write(self, rows: Rows, weights: Floats | float) -> None:
        """Set the weights of leaves; if a leaf occurs twice, the last one counts."""
        if not len(rows):
            return
        if self._used < self._top:
            self._used = max(self._used, int(rows[rows.argmax()]) // self._below_top + 1)
        self._leaf[rows] = weights
        largest, self._largest = self._largest, None
        if isinstance(weights, float) and largest is not None and weights >= largest:
            self._largest = weights
        self._write(self._nodes, self._begins, self._leaf, rows)

    def read(self, rows: Any) -> Floats:
        """Return the weights of leaves."""
        weights: Floats = self._leaf[rows]
        return weights

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._nodes[SUM, : self._used].cumsum()[-1])

    @property
    def smallest(self) -> float:
        """The smallest weight above 0; infinity if there is none."""
        least = self._nodes[LEAST, : self._used]
        smallest = float(least.min())
        return smallest if smallest > 0 else float(least.min(where=least > 0, initial=np.inf))

    @property
    def largest(self) -> float:
        """The largest weight."""
        if self._largest is None:
            self._largest = float(self._nodes[MOST, : self._used].max())
        return self._largest

    def largest_without(self, rows: Rows) -> float:
        """Return the largest weight of the other leaves, and possibly set those of ``rows`` to 0.

        Args:
            rows: Leaves that will be written next: one or two ranges of consecutive leaves.
        """
        largest = self.largest
        weights = self._leaf[rows]
        if weights[weights.argmax()] < largest or largest == 0:
            return largest
        nodes_above = min(len(rows), len(rows) // self._below_top + 4)
        if np.count_nonzero(self._nodes[MOST, : self._used] == largest) <= nodes_above:  # no others may have it
            self.write(rows, 0.0)
        return self.largest

    def find(self, fraction: Floats) -> Rows:
        """Return the leaves whose shares of the cumulative sum contain the given fractions of the total.

        Args:
            fraction: Fractions of the total, in [0, 1), shape (n,).

        Raises:
            ValueError: If all weights are 0.
        """
        rows = self._find(self._nodes, self._begins, self._leaf, self._used, fraction)
        if not len(rows) and len(fraction):
            raise ValueError("a sum tree needs a weight above 0 to draw from, got none")
        return rows


def _kernels(compiled: bool | None) -> tuple[Write, Find]:
    if compiled is None:
        compiled = importlib.util.find_spec("numba") is not None
    if not compiled:
        return _write, _find
    from lightning_ding.worker.buffer import sum_tree_numba  # takes a second to import

    return sum_tree_numba.write, sum_tree_numba.find


def _write(nodes: Floats, begins: Rows, leaf: Floats, rows: Rows) -> None:
    """Update the nodes above some leaves.

    Args:
        nodes: Sum, least and largest weight of all nodes, shape (3, M), the top level first.
        begins: Index of the first node of each level, and M, shape (L + 1,).
        leaf: Weights of the leaves.
        rows: The leaves.
    """
    leaves = leaf.reshape(-1, FAN_OUT)
    below = [leaves, leaves, leaves]
    above = rows
    for begin, end in zip(begins[-2::-1].tolist(), begins[:0:-1].tolist(), strict=True):
        above = above // FAN_OUT
        sums, least, most = (weights[above] for weights in below)
        smallest = np.where(least > 0, least, np.inf).min(axis=1)
        level = nodes[:, begin:end]
        level[SUM, above] = sums.cumsum(axis=1)[:, -1]  # in the order in which a loop adds
        level[LEAST, above] = np.where(smallest < np.inf, smallest, 0.0)
        level[MOST, above] = most.max(axis=1)
        if begin:
            below = [values.reshape(-1, FAN_OUT) for values in level]


def _find(nodes: Floats, begins: Rows, leaf: Floats, used: int, fraction: Floats) -> Rows:
    """Return the leaves that contain fractions of the total; none if the total is 0.

    Args:
        nodes: As of ``_write``.
        begins: As of ``_write``.
        leaf: Weights of the leaves.
        used: Number of nodes of the top level to search, from its beginning.
        fraction: Fractions in [0, 1), shape (n,).
    """
    top = nodes[SUM, :used]
    cumulative = top.cumsum()
    total = cumulative[-1]
    if not total > 0:
        return np.empty(0, dtype=np.int64)
    rest = fraction * total
    node: Rows = np.minimum(cumulative.searchsorted(rest, side="right"), np.flatnonzero(top)[-1])
    rest = rest - np.where(node > 0, cumulative[node - 1], 0.0)
    levels = [nodes[SUM, begin:end] for begin, end in pairwise(begins[1:].tolist())]
    for weights in (*levels, leaf):
        weight = weights.reshape(-1, FAN_OUT)[node]
        within = weight.cumsum(axis=1)
        is_above = within > rest[:, None]
        last = FAN_OUT - 1 - (weight[:, ::-1] > 0).argmax(axis=1)  # rounding must not select a weight of 0
        place = np.where(is_above[:, -1], is_above.argmax(axis=1), last)
        rest = rest - np.where(place > 0, within[np.arange(len(place)), place - 1], 0.0)
        node = node * FAN_OUT + place
    return node
