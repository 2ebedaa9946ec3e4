"""The rows of a ring by env and time, to find other steps of a row's episode without following links.

Shapes: C capacity, N envs, K rows, W rows of an env that the table has room for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.worker.buffer.columns import Rows

NONE: Rows = np.empty(0, dtype=np.int64)


class EpisodeRows:
    """Where the steps of each row's episode are in the ring.

    The steps of an env are numbered from 0 as they arrive. A table holds the row of each of its newest steps. The first
    and the last step of its episode are noted for each row; while the episode continues, its last step is the newest
    one of the env.

    Args:
        capacity: Number of rows C, >= 1.

    Example:
        >>> rows = EpisodeRows(4)
        >>> rows.add(np.arange(3), env_id=np.zeros(3, dtype=int), episode_id=np.array([0, 0, 1]))
        >>> step, first, last, env = rows.span(np.array([0, 1, 2]))
        >>> first.tolist(), last.tolist(), rows.find(env, last).tolist()
        ([0, 0, 2], [1, 1, 2], [1, 1, 2])
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._step = np.full(self._capacity, -1, dtype=np.int64)
        self._first = np.zeros(self._capacity, dtype=np.int64)
        self._last = np.full(self._capacity, -1, dtype=np.int64)  # -1 while the episode continues
        self._env = np.zeros(self._capacity, dtype=np.int64)
        self._table: NDArray[np.int64] = np.zeros((0, 16), dtype=np.int64)  # (N, W)
        self._count: Rows = NONE  # steps of each env so far
        self._oldest: Rows = NONE  # the oldest step of each env that is in the ring
        self._episode: Rows = NONE  # id of the current episode of each env
        self._start: Rows = NONE  # its first step

    def add(self, rows: Rows, env_id: NDArray[Any], episode_id: NDArray[Any]) -> None:
        """Add new rows, which may replace older ones.

        Args:
            rows: The rows, shape (K,), each once, with K <= C.
            env_id: Env of each of them, from 0; those of an env in chronological order.
            episode_id: Number of the episode of each of them.
        """
        if not len(rows):
            return
        self._make_envs(int(env_id.max()) + 1)
        self._evict(rows[self._step[rows] >= 0])
        order = np.argsort(env_id, kind="stable")
        rows, env, episode = rows[order], env_id[order].astype(np.int64), episode_id[order].astype(np.int64)
        place = np.arange(len(rows))
        begins = np.append(True, env[1:] != env[:-1])  # whether it is the first new row of its env
        ends = np.append(begins[1:], True)  # whether it is the last one
        step = self._count[env] + place - np.maximum.accumulate(np.where(begins, place, 0))
        before = np.where(begins, self._episode[env], np.append(episode[:1], episode[:-1]))
        is_new = (episode != before) | (step == 0)
        origin = np.maximum.accumulate(np.where(is_new | begins, place, 0))  # the row that tells the episode's start
        first = np.where(is_new, step, self._start[env])[origin]
        is_left = is_new & (step > 0)  # an earlier episode of the env ends here
        last_of_left = step[is_left] - 1
        first_of_left = np.where(begins, self._start[env], np.append(first[:1], first[:-1]))[is_left]
        self._count[env[ends]] = step[ends] + 1
        self._make_room()
        self._env[rows], self._step[rows], self._first[rows], self._last[rows] = env, step, first, -1
        self._table[env, step % self._table.shape[1]] = rows
        self._end_episodes(env[is_left], first_of_left, last_of_left)
        self._episode[env[ends]], self._start[env[ends]] = episode[ends], first[ends]

    def span(self, rows: Rows) -> tuple[Rows, Rows, Rows, Rows]:
        """Return the step of each row, the first and the last step of its episode in the ring, and its env."""
        env = self._env[rows]
        last = self._last[rows]
        last = np.where(last < 0, self._count[env] - 1, last)
        return self._step[rows], np.maximum(self._first[rows], self._oldest[env]), last, env

    def find(self, env: Rows, step: Rows) -> Rows:
        """Return the rows of steps of envs, which must be in the ring."""
        found: Rows = self._table[env, step % self._table.shape[1]]
        return found

    # ------------------------------------------------------------------ parts

    def _end_episodes(self, env: Rows, first: Rows, last: Rows) -> None:
        """Note in the rows of episodes what their last step is.

        Args:
            env: Env of each episode.
            first: Its first step, which may have left the ring.
            last: Its last step.
        """
        first = np.maximum(first, self._oldest[env])
        length = np.maximum(last - first + 1, 0)
        ends = np.cumsum(length)
        step = np.arange(length.sum()) + np.repeat(first - ends + length, length)
        self._last[self.find(np.repeat(env, length), step)] = np.repeat(last, length)

    def _evict(self, rows: Rows) -> None:
        """Forget rows that are about to be replaced."""
        np.maximum.at(self._oldest, self._env[rows], self._step[rows] + 1)
        self._step[rows] = -1

    def _make_envs(self, number: int) -> None:
        more = number - len(self._count)
        if more <= 0:
            return
        zeros = np.zeros(more, dtype=np.int64)
        self._count, self._oldest, self._start = (np.append(x, zeros) for x in (self._count, self._oldest, self._start))
        self._episode = np.append(self._episode, zeros - 1)
        self._table = np.append(self._table, np.zeros((more, self._table.shape[1]), dtype=np.int64), axis=0)

    def _make_room(self) -> None:
        """Widen the table until the steps of each env fit."""
        needed, width = int((self._count - self._oldest).max()), self._table.shape[1]
        if needed <= width:
            return
        while width < needed:
            width *= 2
        self._table = np.zeros((len(self._count), width), dtype=np.int64)
        rows = np.flatnonzero(self._step >= 0)
        self._table[self._env[rows], self._step[rows] % width] = rows
