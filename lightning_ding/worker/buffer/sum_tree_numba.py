"""The compiled loops of the sum tree, imported only if numba is installed. See ``sum_tree`` for their meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

FAN_OUT = 8


@njit(cache=True)  # type: ignore[untyped-decorator, unused-ignore]
def write(nodes: Any, begins: Any, leaf: Any, rows: Any) -> None:
    """Update the nodes above some leaves."""
    above = np.empty(len(rows), dtype=np.int64)
    count = 0
    for row in rows:
        if count == 0 or above[count - 1] != row // FAN_OUT:  # neighbours mostly have the same node above them
            above[count] = row // FAN_OUT
            count += 1
    above = above[:count]
    sums, least, most = nodes[0], nodes[1], nodes[2]
    last = len(begins) - 2
    _up(sums[begins[last] :], least[begins[last] :], most[begins[last] :], leaf, leaf, leaf, above)
    for level in range(last - 1, -1, -1):
        begin, below = begins[level], begins[level + 1]
        for index in range(count):
            above[index] //= FAN_OUT
        _up(sums[begin:], least[begin:], most[begin:], sums[below:], least[below:], most[below:], above)


@njit(cache=True)  # type: ignore[untyped-decorator, unused-ignore]
def _up(sums: Any, least: Any, most: Any, sums_below: Any, least_below: Any, most_below: Any, above: Any) -> None:
    """Set sum, least and largest weight of nodes from those of their children."""
    for node in above:
        total, smallest, largest = 0.0, np.inf, 0.0
        for child in range(node * FAN_OUT, node * FAN_OUT + FAN_OUT):
            total += sums_below[child]
            largest = max(largest, most_below[child])
            if 0 < least_below[child] < smallest:
                smallest = least_below[child]
        sums[node], least[node], most[node] = total, smallest if smallest < np.inf else 0.0, largest


@njit(cache=True)  # type: ignore[untyped-decorator, unused-ignore]
def find(nodes: Any, begins: Any, leaf: Any, used: Any, fraction: Any) -> Any:
    """Return the leaves that contain fractions of the total; none if the total is 0."""
    cumulative = np.empty(used)
    total, last = 0.0, 0
    for index in range(used):
        total += nodes[0, index]
        cumulative[index] = total
        if nodes[0, index] > 0:
            last = index
    if not total > 0:
        return np.empty(0, dtype=np.int64)
    found, rest = np.empty(len(fraction), dtype=np.int64), fraction * total
    top = 0
    for index in range(len(rest)):
        if index > 0 and fraction[index] < fraction[index - 1]:
            top = 0  # they mostly rise, and then no node is read twice
        while top < last and cumulative[top] <= rest[index]:
            top += 1
        found[index] = top
        rest[index] -= cumulative[top - 1] if top > 0 else 0.0
    for level in range(1, len(begins) - 1):
        _down(nodes[0, begins[level] : begins[level + 1]], found, rest)
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
