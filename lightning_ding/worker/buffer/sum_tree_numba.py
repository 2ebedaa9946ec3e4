"""The compiled loops of the sum tree, imported only if numba is installed. See ``sum_tree`` for their meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

FAN_OUT = 8


@njit(cache=True)  # type: ignore[untyped-decorator, unused-ignore]
def write(
    group: Any, block: Any, leaf: Any, group_min: Any, block_min: Any, group_max: Any, block_max: Any, rows: Any
) -> None:
    """Update the blocks and groups above some leaves."""
    for index in range(len(rows)):
        above = rows[index] // FAN_OUT
        total, smallest, largest = 0.0, np.inf, 0.0
        for child in range(above * FAN_OUT, above * FAN_OUT + FAN_OUT):
            total += leaf[child]
            largest = max(largest, leaf[child])
            if 0 < leaf[child] < smallest:
                smallest = leaf[child]
        block[above], block_min[above], block_max[above] = total, smallest, largest
        top = above // FAN_OUT
        total, smallest, largest = 0.0, np.inf, 0.0
        for child in range(top * FAN_OUT, top * FAN_OUT + FAN_OUT):
            total += block[child]
            smallest = min(smallest, block_min[child])
            largest = max(largest, block_max[child])
        group[top], group_min[top], group_max[top] = total, smallest, largest


@njit(cache=True)  # type: ignore[untyped-decorator, unused-ignore]
def find(group: Any, block: Any, leaf: Any, fraction: Any) -> Any:
    """Return the leaves that contain fractions of the total; none if the total is 0."""
    cumulative = np.empty(len(group))
    total, last = 0.0, 0
    for index in range(len(group)):
        total += group[index]
        cumulative[index] = total
        if group[index] > 0:
            last = index
    if not total > 0:
        return np.empty(0, dtype=np.int64)
    found, rest = np.empty(len(fraction), dtype=np.int64), fraction * total
    top = 0
    for index in range(len(rest)):
        if index > 0 and fraction[index] < fraction[index - 1]:
            top = 0  # they mostly rise, and then no group is read twice
        while top < last and cumulative[top] <= rest[index]:
            top += 1
        found[index] = top
        rest[index] -= cumulative[top - 1] if top > 0 else 0.0
    _down(block, found, rest)
    _down(leaf, found, rest)
    return found


@njit(cache=True)  # type: ignore[untyped-decorator, unused-ignore]
def _down(weights: Any, found: Any, rest: Any) -> None:
    """Descend from nodes to the children that contain numbers, without branches that would often be mispredicted."""
    for index in range(len(found)):
        first = found[index] * FAN_OUT
        place, before, total = 0, 0.0, 0.0
        for child in range(first, first + FAN_OUT):
            total += weights[child]
            is_before = total <= rest[index]
            place += is_before
            before = total if is_before else before
        if place == FAN_OUT:  # rounding must not select a weight of 0
            place, before = _last(weights, first)
        found[index] = first + place
        rest[index] -= before


@njit(cache=True)  # type: ignore[untyped-decorator, unused-ignore]
def _last(weights: Any, first: int) -> Any:
    """Return the place of the last child above 0, and the sum of the children before it."""
    place, before, total = 0, 0.0, 0.0
    for candidate in range(FAN_OUT):
        if weights[first + candidate] > 0:
            place, before = candidate, total
        total += weights[first + candidate]
    return place, before
