"""Uniform draws.

Shapes: n numbers to draw from, B numbers of a minibatch, U minibatches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_ding.worker.buffer.form import Rows

Mask = NDArray[np.bool_]


def draw(
    rng: np.random.Generator,
    num_batches: int,
    batch_size: int,
    count: int,
    replace: bool = False,
    dropped: Mask | None = None,
) -> Rows:
    """Return numbers below n, each that is not dropped with the same probability.

    Args:
        rng: Where chance comes from.
        num_batches: U.
        batch_size: B, at most as many as are not dropped unless ``replace``.
        count: n, >= 1.
        replace: Allow a number to stand in a minibatch more than once.
        dropped: True for numbers that must not be drawn, shape (n,); not all of them. None for none.

    Returns:
        Shape (U, B), distinct in a minibatch unless ``replace``.
    """
    if dropped is not None and 2 * (batch_size + np.count_nonzero(dropped)) > count:
        kept = np.flatnonzero(~dropped)  # too few to be found by trying
        return kept[draw(rng, num_batches, batch_size, len(kept), replace)]
    if not replace and 2 * batch_size > count:
        return np.stack([rng.permutation(count)[:batch_size] for _ in range(num_batches)])
    rows = rng.integers(count, size=(num_batches, batch_size))
    while (again := _wrong(rows, replace, dropped)) is not None:  # drawn anew until nothing is wrong
        rows[again] = rng.integers(count, size=np.count_nonzero(again))
    return rows


def _wrong(rows: Rows, replace: bool, dropped: Mask | None) -> Mask | None:
    """Return which numbers repeat others of their minibatch or are dropped; None if none does."""
    again = None if replace else _repeats(rows)
    if dropped is not None and (fell := dropped[rows]).any():
        again = fell if again is None else again | fell
    return again


def _repeats(rows: Rows) -> Mask | None:
    ordered = np.sort(rows, axis=1)
    minibatch, place = (ordered[:, 1:] == ordered[:, :-1]).nonzero()
    if len(place) == 0:
        return None
    again = np.zeros(rows.shape, dtype=bool)
    again[minibatch, rows.argsort(1)[minibatch, place + 1]] = True
    return again
