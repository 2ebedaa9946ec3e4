"""Links from the rows of the ring to the observations after their steps.

A row is linked to the row that follows it in the same env, or to a spare slot if no row follows. Spare slots are
numbered from C, used from the front, and freed when their row is overwritten or linked to a following row.

Shapes: C capacity, K transitions pushed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.worker.buffer.columns import Columns, ObsColumn, Rows

NONE: Rows = np.empty(0, dtype=np.int64)
SMALL = 4096  # bytes of observations up to which a copy of them is faster than array operations


class EnvOrder(NamedTuple):
    """The order of the envs in a batch, which mostly is that of the last batch."""

    is_distinct: bool
    """Whether the batch holds each env once, in ascending order. The arrays are empty then."""
    before: Rows
    """Indices of the transitions that another one of the same env follows in the batch."""
    after: Rows
    """Indices of the transitions that follow those of ``before``."""
    first: Rows
    """Index of the first transition of each env."""
    last: Rows
    """Index of the last transition of each env."""
    ends: Rows
    """The same indices, in ascending order."""


DISTINCT = EnvOrder(True, NONE, NONE, NONE, NONE, NONE)


class Links:
    """Links of the rows of a ring, and the spare slots in use.

    Args:
        capacity: Number of rows C, >= 1.
        frames: Observations by leaf, to which ``write`` adds; empty if transitions hold no observations.
        episode_id: Column of the numbers of episodes; None if transitions have none.
    """

    def __init__(self, capacity: int, frames: Mapping[str, ObsColumn], episode_id: NDArray[Any] | None) -> None:
        self.capacity = capacity
        self._frames = list(frames.items())
        self._releasing = [one for one in frames.values() if type(one).release is not ObsColumn.release]
        self._episode_id = episode_id
        is_small = 2 * capacity <= np.iinfo(np.int32).max
        self.link: Rows = np.zeros(capacity if frames else 0, dtype=np.int32 if is_small else np.int64)
        """Row or slot of the observation after each row, shape (C,)."""
        self.fresh = capacity
        """The first slot that was never used."""
        self._key: tuple[str, bytes] | None = None  # type and envs of the last batch
        self._order = DISTINCT
        self._all: Rows = NONE  # indices of a batch in which every transition was announced
        self.last_row: Rows = np.full(0, -1, dtype=np.int64)
        """The newest row of each env, -1 for none."""
        self._free: Rows = np.empty(0, dtype=np.int64)  # freed slots, the last one on top

    def order_of(self, env_id: NDArray[Any]) -> EnvOrder:
        """Return the order of the envs in a batch.

        Raises:
            ValueError: If the number of an env is negative.
        """
        key = (env_id.dtype.char, env_id.tobytes())
        if key == self._key:
            return self._order
        highest, lowest = int(env_id.max()), int(env_id.min())
        require(lowest >= 0, "env_id", ">= 0", lowest)
        if highest >= len(self.last_row):
            more = np.full(highest + 1 - len(self.last_row), -1, dtype=np.int64)
            self.last_row = np.concatenate([self.last_row, more])
        self._key, self._order = key, DISTINCT
        if not (env_id[1:] > env_id[:-1]).all():
            order = np.argsort(env_id, kind="stable")
            same = np.append(env_id[order][1:] == env_id[order][:-1], False)
            before, after, first = order[same], order[np.flatnonzero(same) + 1], order[np.append(True, ~same[:-1])]
            self._order = EnvOrder(False, before, after, first, order[~same], np.sort(order[~same]))
        return self._order

    def write(
        self, rows: Rows, where: slice | Rows, env_id: NDArray[Any] | None, obs: Columns, next_obs: Columns
    ) -> None:
        """Store the observations of new rows, and link the rows.

        Args:
            rows: The new rows, shape (K,).
            where: The same rows, as a slice if possible.
            env_id: Env of each transition; None if they are not known, then no transition follows another one.
            obs: Observations by leaf, leading axis K.
            next_obs: Observations after the steps.
        """
        waiting: Rows | None = None  # rows whose next observation needs a slot; None for all
        known = freed = NONE
        if env_id is not None:
            order = self.order_of(env_id)
            if order.is_distinct:
                known, freed = self._link_to_newest(rows, env_id, obs)
                self.last_row[env_id] = rows
            else:
                waiting = self._link_within(rows, order, obs, next_obs)
                some = {name: leaf.take(order.first, 0) for name, leaf in obs.items()}
                known, freed = self._link_to_newest(rows[order.first], env_id[order.first], some)
                known = order.first[known]
                self.last_row[env_id[order.last]] = rows[order.last]
        slots, needed = freed, len(rows) if waiting is None else len(waiting)
        if len(freed) != needed:  # mostly the same ones are used again
            if len(freed):
                self._free = np.concatenate([self._free, freed])
            kept = max(0, len(self._free) - needed)
            slots, self._free = self._free[kept:], self._free[:kept]
            if more := needed - len(slots):
                slots = np.concatenate([slots, np.arange(self.fresh, self.fresh + more)])
                self.fresh += more
        unlinked = rows if waiting is None else rows[waiting]
        self.link[unlinked] = slots
        for name, frames in self._frames:
            frames.write_rows(where, rows, obs[name], known, freed)
            frames.write_slots(slots, next_obs[name] if waiting is None else next_obs[name].take(waiting, 0), unlinked)

    def evict(self, rows: Rows, env_id: NDArray[Any] | None) -> None:
        """Free the slots of rows that are about to be overwritten.

        Args:
            rows: The rows.
            env_id: Env of each of them; None if they are not known.
        """
        links = self.link[rows]
        slots = links[links >= self.capacity]
        for frames in self._releasing:
            frames.release(rows)
            frames.release(slots)
        if len(slots):
            self._free = np.concatenate([self._free, slots])
        if env_id is not None:
            gone = self.last_row[env_id] == rows
            if np.count_nonzero(gone):
                self.last_row[env_id[gone]] = -1

    def state(self, rows: int) -> Columns:
        """Return the arrays that ``load`` restores, for the number of rows in use."""
        return {"link": self.link[:rows], "last_row": self.last_row, "free": self._free}

    def load(self, state: Mapping[str, NDArray[Any]], rows: int, fresh: int) -> None:
        """Restore what ``state`` returned, for the number of rows in use and the first slot that was never used."""
        self.link[:rows] = state["link"]
        self.last_row, self._free = state["last_row"].copy(), state["free"].copy()
        self.fresh = fresh

    def _link_within(self, rows: Rows, order: EnvOrder, obs: Columns, next_obs: Columns) -> Rows:
        """Link rows within the batch; return the indices of those without a following row."""
        before, after = order.before, order.after
        rows_before, rows_after = rows[before], rows[after]
        follows = np.ones(len(before), dtype=bool)
        for name, _ in self._frames:
            follows &= _rows_equal(next_obs[name].take(before, 0), obs[name].take(after, 0))
        if self._episode_id is not None:
            follows &= self._episode_id[rows_before] == self._episode_id[rows_after]
        if np.count_nonzero(follows) == len(follows):
            self.link[rows_before] = rows_after
            return order.ends
        self.link[rows_before[follows]] = rows_after[follows]
        waiting = np.ones(len(rows), dtype=bool)
        waiting[before[follows]] = False
        return waiting.nonzero()[0]

    def _link_to_newest(self, rows: Rows, env_id: NDArray[Any], obs: Columns) -> tuple[Rows, Rows]:
        """Link the newest row of each env to the first new one if that was announced, and free its slot.

        Returns:
            Indices of the new rows that were announced, and the slots that announced them.
        """
        newest = self.last_row[env_id]
        slots = self.link[newest]  # for an env without a row it is that of any row
        if self._all_follow(newest, slots, rows, obs):
            self.link[newest] = rows
            if len(self._all) != len(rows):
                self._all = np.arange(len(rows))
            return self._all, slots
        follows = newest >= 0
        if self._episode_id is not None:
            follows &= self._episode_id[newest] == self._episode_id[rows]
        for name, frames in self._frames:
            follows &= _rows_equal(frames.read(slots), obs[name])
        known = follows.nonzero()[0]
        if len(known) < len(rows):
            newest, slots, rows = newest[known], slots[known], rows[known]
        self.link[newest] = rows
        return known, slots

    def _all_follow(self, newest: Rows, slots: Rows, rows: Rows, obs: Columns) -> bool:
        """Return True if all new rows were announced; if False they may have been, but not with equal bytes."""
        if not len(newest) or newest[newest.argmin()] < 0:
            return False
        episode_id = self._episode_id
        if episode_id is not None and episode_id[newest].tobytes() != episode_id[rows].tobytes():
            return False
        for name, frames in self._frames:
            new = obs[name]
            if new.nbytes > SMALL:
                return False
            announced = frames.read(slots)
            if announced.dtype != new.dtype or announced.tobytes() != new.tobytes():
                return False
        return True


def steps(env_id: NDArray[Any]) -> Iterator[slice]:
    """Yield consecutive parts of a batch that hold each env at most once."""
    order = np.argsort(env_id, kind="stable")
    before = np.full(len(env_id), -1)  # where the same env was before
    same = np.flatnonzero(env_id[order][1:] == env_id[order][:-1])
    before[order[same + 1]] = order[same]
    start = 0
    for place, last in enumerate(before.tolist()):
        if last >= start:
            yield slice(start, place)
            start = place
    yield slice(start, len(env_id))


def _rows_equal(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether arrays are equal along all axes but the first; NaN equals NaN."""
    axes = tuple(range(1, left.ndim))
    equal = np.asarray((left == right).all(axis=axes))
    if left.dtype.kind == "f" and np.count_nonzero(equal) < len(equal):
        others = (~equal).nonzero()[0]
        left, right = left.take(others, 0), right.take(others, 0)
        is_nan = np.asarray(left != left)
        if np.count_nonzero(is_nan):
            equal[others] = ((left == right) | is_nan & (right != right)).all(axis=axes)
    return equal
