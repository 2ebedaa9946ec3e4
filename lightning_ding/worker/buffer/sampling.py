"""Uniform draws, checks of sizes, and the rows that must not be drawn any more.

Shapes: C rows of the ring, n numbers to draw from, B numbers of a minibatch, U minibatches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.worker.arguments import check_integers
from lightning_ding.worker.buffer.columns import Rows

Mask = NDArray[np.bool_]


class NotEnoughError(ValueError):
    """The buffer does not hold enough data to draw from yet."""


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
        rng: Random number generator.
        num_batches: Number of minibatches U.
        batch_size: Size of a minibatch B; without ``replace`` at most the number of rows that are not dropped.
        count: Number of candidates n, >= 1.
        replace: Allow a number to occur in a minibatch more than once.
        dropped: Whether each number must not be drawn, shape (n,); not all of them. None if all may.

    Returns:
        Shape (U, B), distinct in a minibatch unless ``replace``.
    """
    if dropped is not None and 2 * (batch_size + np.count_nonzero(dropped)) > count:
        kept = np.flatnonzero(~dropped)  # too few for drawing until one fits
        return kept[draw(rng, num_batches, batch_size, len(kept), replace)]
    if not replace and 2 * batch_size > count:
        return np.stack([rng.permutation(count)[:batch_size] for _ in range(num_batches)])
    rows = rng.integers(count, size=(num_batches, batch_size))
    while True:  # numbers that repeat others of their minibatch or are dropped are drawn again
        again = None if replace else _repeats(rows)
        if dropped is not None and (is_dropped := dropped[rows]).any():
            again = is_dropped if again is None else again | is_dropped
        if again is None:
            return rows
        rows[again] = rng.integers(count, size=np.count_nonzero(again))


def _repeats(rows: Rows) -> Mask | None:
    ordered = rows.copy()
    ordered.sort()
    is_equal = ordered[:, 1:] == ordered[:, :-1]
    if not np.count_nonzero(is_equal):  # faster than any()
        return None
    minibatch, place = is_equal.nonzero()
    again = np.zeros(rows.shape, dtype=bool)
    if len(place) > len(rows):  # each minibatch is sorted once, not once for each of its repeats
        again[minibatch, rows.argsort(1)[minibatch, place + 1]] = True
    else:
        again[minibatch, rows[minibatch].argsort(1)[np.arange(len(place)), place + 1]] = True
    return again


class DroppedRows:
    """The rows that were dropped and have not been overwritten since.

    Args:
        capacity: Number of rows C, >= 1.

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
        """Whether each row is dropped, shape (C,); None if no row is dropped, which is the usual case."""

    def add(self, rows: Rows) -> None:
        """Drop rows that are not dropped yet."""
        if not len(rows):
            return
        if self.mask is None:
            self.mask = np.zeros(self._capacity, dtype=bool)
        self.mask[rows] = True
        self.count += len(rows)

    def release(self, rows: Rows) -> Rows:
        """Remove the marks of overwritten or cleared rows; return the rows that were not dropped."""
        if self.mask is None:
            return rows
        was_there = self.without(rows)
        self.mask[rows] = False
        self.count -= len(rows) - len(was_there)
        if not self.count:
            self.mask = None
        return was_there

    def without(self, rows: Rows) -> Rows:
        """Return those of the rows that are not dropped."""
        return rows if self.mask is None else rows[~self.mask[rows]]

    def rows(self) -> Rows:
        """Return the rows that are dropped, in order."""
        return np.empty(0, dtype=np.int64) if self.mask is None else np.flatnonzero(self.mask)

    def load(self, rows: Rows) -> None:
        """Restore the rows that :meth:`rows` of a ring of the same size returned."""
        self.count, self.mask = 0, None
        self.add(rows)


def check_sizes(batch_size: int, num_batches: int | None, n_step: int, cur_learner_iter: int) -> None:
    """Check the numbers that ``sample`` takes.

    Raises:
        ValueError: If a size is out of range.
        TypeError: If ``batch_size`` or ``cur_learner_iter`` is not an integer.
    """
    if type(batch_size) is not int or type(cur_learner_iter) is not int:
        check_integers(batch_size=batch_size, cur_learner_iter=cur_learner_iter)
    require(batch_size >= 1, "batch_size", ">= 1", batch_size)
    require(num_batches is None or num_batches >= 1, "num_batches", ">= 1 or None", num_batches)
    require(n_step >= 1, "n_step", ">= 1", n_step)


def require_enough(
    count: int, batch_size: int, replace: bool = False, what: str = "transitions", kept: str = "kept"
) -> None:
    """Check that a buffer holds enough transitions for a minibatch.

    Args:
        count: Number of transitions that can be drawn.
        batch_size: Size of the minibatch.
        replace: Whether one transition may be drawn more than once.
        what: Name of what is drawn, for the message.
        kept: Description of the limits, for the message.

    Raises:
        NotEnoughError: If the buffer holds too few transitions.
    """
    if count <= 0 if replace else count < batch_size:
        enough = f"at most the {count} {what} {kept}, without replacement"
        raise NotEnoughError(f"batch_size must be {enough}, got {batch_size}")
