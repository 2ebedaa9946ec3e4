"""Which rows of a ring follow each other, across the ends of episodes too, and how many steps of a chain precede each.

A chain is the consecutive steps of one episode that were pushed. A stream continues after a terminated step with the
next episode of its env; it breaks at a time limit and where a step is missing, because a value of the true next
observation is needed there.

Shapes: C capacity, N envs, K rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_ding.worker.buffer.columns import Rows
from lightning_ding.worker.buffer.storage import RingStorage

Mask = NDArray[np.bool_]
ARRAYS = ("chains/step", "chains/chain", "chains/stream", "chains/next")  # names in a saved state


class Window(NamedTuple):
    """Which sequences are drawn.

    Attributes:
        length: Steps of a sequence T, >= 1.
        burn_in: First steps of a sequence that are not learned from, in [0, T).
        period: Steps between the beginnings of two sequences of a chain; None lets sequences begin at any step.
        across_episodes: Whether sequences follow streams, not chains.
        across_time_limits: Whether sequences also continue after a time limit; only with ``across_episodes``.
    """

    length: int
    burn_in: int
    period: int | None
    across_episodes: bool
    across_time_limits: bool = False


class Chains:
    """The place of each row in its chain and stream, and the next row of its env.

    A new row is compared with the newest row of its env. So places stay right after the beginning of a chain was
    overwritten.

    Args:
        storage: The ring.
    """

    def __init__(self, storage: RingStorage) -> None:
        self._storage = storage
        self._of_row: Rows = np.zeros((4, storage.capacity), dtype=np.int64)  # pages of zeros cost nothing until used
        self._step, self._chain, self._stream, self._next = self._of_row

    @property
    def nbytes(self) -> int:
        """Bytes that hold the places of the rows in use."""
        return self._of_row[:, : self._storage.count].nbytes

    def add(self, rows: Rows, newest: Rows) -> None:
        """Add new rows.

        Args:
            rows: The rows, shape (K,), each once, those of an env in chronological order.
            newest: The newest row of each env before they were written, shape (N,), -1 for none.
        """
        storage = self._storage
        env_id: Rows = storage.columns["env_id"][rows]
        order = np.argsort(env_id, kind="stable")
        row, env = rows[order], env_id[order]
        begins = np.append(True, env[1:] != env[:-1])  # whether it is the first new row of its env
        before = np.append(row[:1], row[:-1])
        before[begins] = _known(newest, env[begins], rows, storage.capacity)
        has = before >= 0
        follows = has & (storage.links(before) == row) & ~storage.ended(before)
        streams = follows | (has & storage.terminated(before))
        place = np.arange(len(row))
        first = np.maximum.accumulate(np.where(begins, place, 0))
        step = np.where(has, self._step[before] + 1, 0)[first] + place - first
        chain, stream = (
            _inherited(begins | ~continues, np.where(continues, origin[before], step))
            for continues, origin in ((follows, self._chain), (streams, self._stream))
        )
        self._step[row], self._chain[row], self._stream[row], self._next[row] = step, chain, stream, -1
        self._next[before[has]] = row[has]

    def take_places(self, rows: Rows, other: Chains, others: Rows) -> None:
        """Set the places of new rows, whose chains began in another ring, to those of its rows."""
        for mine, theirs in ((self._chain, other._chain), (self._stream, other._stream)):
            mine[rows] = self._step[rows] - (other._step[others] - theirs[others])

    def begins(self, rows: Rows, window: Window) -> Mask:
        """Return whether sequences begin at rows, at every ``period``-th step of a chain or stream."""
        origin = self._stream if window.across_episodes else self._chain
        begins: Mask = (self._step[rows] - origin[rows]) % (window.period or 1) == 0
        return begins

    def grows(self, rows: Rows, window: Window) -> Mask:
        """Return whether the next steps that are pushed may belong to the sequences that begin at rows."""
        origin = self._stream if window.across_episodes else self._chain
        newest = self._storage.newest_rows()[self._storage.columns["env_id"][rows]]
        is_over = self._storage.ended(newest)
        if window.across_episodes:
            is_over &= ~self._storage.terminated(newest)
        is_short = self._step[newest] - self._step[rows] < window.length - 1
        grows: Mask = is_short & (origin[newest] == origin[rows]) & ~is_over
        return grows

    def follow(self, rows: Rows, window: Window) -> tuple[Rows, Mask]:
        """Return the next row of each chain or stream, or the row itself if there is none, and whether there is one."""
        after, continues = self._storage.follow(rows)
        if not window.across_episodes:
            return after, continues
        over = self._storage.ended(rows) if window.across_time_limits else self._storage.terminated(rows)
        crosses = ~continues & over & (self._next[rows] >= 0)
        return np.where(crosses, self._next[rows], after), continues | crosses

    # ------------------------------------------------------------------ state

    def state(self) -> dict[str, Rows]:
        """Return the arrays that :meth:`load` restores, which share the memory of the chains."""
        return {name: array[: self._storage.count] for name, array in zip(ARRAYS, self._of_row, strict=True)}

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned; from older states without it, chains begin with the oldest row of an env."""
        storage = self._storage
        if ARRAYS[0] in arrays:
            for name, array in zip(ARRAYS, self._of_row, strict=True):
                array[: storage.count] = arrays[name]
        elif storage.count and not storage.missing:
            self.add(storage.newest(storage.count), np.full_like(storage.newest_rows(), -1))


def _known(newest: Rows, env: Rows, written: Rows, capacity: int) -> Rows:
    """Return the newest row of each env, or -1 if there is none or it was overwritten by the rows just written."""
    padded = np.append(newest, np.full(max(0, int(env.max()) + 1 - len(newest)), -1))
    found: Rows = padded[env]
    return np.where((found - written[0]) % capacity < len(written), -1, found)


def _inherited(starts: Mask, value: Rows) -> Rows:
    """Return for each place the value of the last place at or before it that starts something."""
    found: Rows = value[np.maximum.accumulate(np.where(starts, np.arange(len(value)), 0))]
    return found
