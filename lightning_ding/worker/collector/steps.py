"""Collected steps: queues of transitions, and cutting steps into episodes and windows.

Shapes: N envs, T steps of an episode, L steps of a window, W windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.foreign import foreign
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker.arguments import check_level_switch


class TransitionQueue:
    """Transitions that were collected and not returned yet.

    Steps are copied into columns with room for as many transitions as are wanted, as soon as they arrive. Large
    observations of several steps are thus not all in memory twice. A step that is enough by itself is not copied.

    Args:
        parts: Nested arrays with a leading axis of transitions, the oldest first.

    Example:
        >>> queue = TransitionQueue()
        >>> queue.lacks(3)
        True
        >>> queue.append({"reward": np.array([1.0, 2.0])})
        >>> queue.append({"reward": np.array([3.0, 4.0])})
        >>> queue.take(3)["reward"].tolist(), queue.count
        ([1.0, 2.0, 3.0], 1)
    """

    def __init__(self, parts: Sequence[Any] = ()) -> None:
        self._parts: list[Any] = list(parts)
        self._block: Any = None  # columns that follow the parts; their first rows hold transitions
        self._filled = self._wanted = 0
        self._are_alike = True  # false once transitions did not fit into the block, until the next take
        self.count = sum(nested.length(part) for part in parts)
        """Number of transitions."""

    def append(self, part: Any, valid: NDArray[np.bool_] | None = None) -> None:
        """Add transitions; where ``valid`` is given, the rows where it is true."""
        part = part if valid is None else nested.index(part, valid)
        size = nested.length(part)
        if self._block is None and self._are_alike and self.count + size < self._wanted:
            self._begin_block(part, self._wanted + size)
        if not self._written(part, size):
            self._parts.append(part)
        self.count += size

    def lacks(self, amount: int) -> bool:
        """Return whether there are fewer transitions; if so, the next ones get room for this amount."""
        self._wanted = amount
        return self.count < amount

    def state(self) -> list[Any]:
        """Return the transitions."""
        return [*self._parts, nested.index(self._block, slice(self._filled))] if self._filled else self._parts

    def take(self, amount: int) -> Any:
        """Remove and return the oldest transitions; there must be at least ``amount`` of them."""
        data = nested.concatenate_arrays(self.state(), keep_double=True)
        self._block, self._filled, self._are_alike = None, 0, True
        self.count -= amount
        self._parts = [nested.index(data, slice(amount, None))] if self.count else []
        return nested.index(data, slice(amount)) if self.count else data

    def check_levels(self, waiting: str, level_seeds: Sequence[int] | None) -> None:
        """Check that the next transitions have a level if and only if these have one.

        Args:
            waiting: Description of these transitions for the message.
            level_seeds: Levels of the next transitions; None for no levels.

        Raises:
            ValueError: If only these or only the next transitions have a level.
        """
        if self.count:
            check_level_switch(waiting, "seed" in self.state()[0], level_seeds)

    def _begin_block(self, like: Any, rows: int) -> None:
        """Make columns with room for a number of rows, and move the transitions that wait into them."""
        self._block, self._filled = nested.empty_arrays(like, rows), 0
        waiting, self._parts = self._parts, []
        for part in waiting:
            if not self._written(part, nested.length(part)):
                self._parts.append(part)

    def _written(self, part: Any, size: int) -> bool:
        """Write transitions into the block; if they do not fit, end it and return false."""
        if self._block is None:
            return False
        end = self._filled + size
        if end > nested.length(self._block) or not nested.copy_into(self._block, slice(self._filled, end), part):
            self._parts = self.state()
            self._block, self._filled, self._are_alike = None, 0, False
            return False
        self._filled = end
        return True


class StepTable:
    """The newest steps of N envs in columns with the leading axes (time, N).

    Args:
        capacity: Steps that fit at first, >= 1. The table grows when an episode is longer.

    Example:
        >>> table = StepTable()
        >>> for reward in ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0]):
        ...     table.append({"reward": np.array(reward)}, alive=2)
        >>> table.cut(env_id=1, length=2)
        {'reward': array([4., 6.])}
    """

    def __init__(self, capacity: int = 64) -> None:
        self._capacity = capacity
        self._size = 0
        self._columns: Any = None

    def append(self, step: dict[str, Any], alive: int) -> None:
        """Add a step.

        Args:
            step: Nested arrays with leading axis N.
            alive: Number of the newest steps, before this one, that are still needed; older ones may be overwritten.

        Raises:
            ValueError: If the entries of the step differ from those of the previous steps.
        """
        if self._columns is None:
            self._columns = nested.apply(lambda x: np.empty((self._capacity, *x.shape), x.dtype), step)
        if self._size == self._capacity:
            self._make_room(alive)
        _write(self._columns, self._size, step, "")
        self._size += 1

    def cut(self, env_id: int, length: int) -> dict[str, Any]:
        """Return a copy of the newest steps of an env.

        Args:
            env_id: Index of the env, in [0, N).
            length: Number of steps T.
        """
        steps = slice(self._size - length, self._size)
        episode: dict[str, Any] = nested.apply(lambda x: x[steps, env_id].copy(), self._columns)
        return episode

    def newest(self, amount: int) -> dict[str, Any] | None:
        """Return a view of the newest steps of all envs, leading axes (time, N); None if there are none."""
        if not amount or self._columns is None:
            return None
        steps: dict[str, Any] = nested.index(self._columns, slice(self._size - amount, self._size))
        return steps

    @classmethod
    def of(cls, steps: dict[str, Any] | None) -> StepTable:
        """Return a table of the steps that ``newest`` returned."""
        table = cls()
        for number in range(0 if steps is None else nested.length(steps)):
            table.append(nested.index(steps, number), alive=number)
        return table

    def _make_room(self, alive: int) -> None:
        newest = slice(self._size - alive, self._size)
        if alive > self._capacity // 2:
            self._capacity *= 2

        def move(column: NDArray[Any]) -> NDArray[Any]:
            is_large = len(column) == self._capacity
            moved = column if is_large else np.empty((self._capacity, *column.shape[1:]), column.dtype)
            moved[:alive] = column[newest]  # within one column the two ranges do not overlap
            return moved

        self._columns = nested.apply(move, self._columns)
        self._size = alive


def queue_for(policy: Any, num_envs: int, kept: Any) -> Any:
    """Return the queue of a policy's collected data: the kept one, or a new one if the form of the data differs."""
    if not isinstance(policy, CollectMode):
        return policy.queue(num_envs, kept)
    return kept if isinstance(kept, TransitionQueue) else TransitionQueue()


def restored_queue(state: Any) -> Any:
    """Return the queue whose ``state`` was saved."""
    if not isinstance(state, Mapping):
        return TransitionQueue([nested.to_array(part, keep_double=True) for part in state])
    queue = foreign("by_env").PieceQueue()
    queue.load(state)
    return queue


def train_sample(policy: Any, episodes: Sequence[Any]) -> Any:
    """Apply a policy's ``get_train_sample`` to each episode, and return the results in one nested dict.

    Args:
        policy: The collect mode of the policy.
        episodes: Nested arrays with leading axis T; lists of transitions for a policy that acts by env.

    Returns:
        Nested arrays whose leading axis is that of all steps; an empty dict without episodes. If the policy's
        ``unroll_len`` L is above 1, the leading axes are (W, L), and :func:`cut_windows` adds a ``mask``. For a policy
        that acts by env, the list of its samples.
    """
    if not isinstance(policy, CollectMode):
        return [sample for episode in episodes for sample in policy.get_train_sample(episode)]
    samples = [policy.get_train_sample(episode) for episode in episodes]
    unroll_len = policy_of(policy).unroll_len
    if unroll_len > 1:
        samples = [cut_windows(sample, unroll_len) for sample in samples]
    return nested.concatenate_arrays(samples, keep_double=True) if samples else {}


def cut_windows(episode: dict[str, Any], length: int) -> dict[str, Any]:
    """Return an episode in windows of equal length.

    Args:
        episode: Nested arrays with leading axis T >= 1.
        length: Steps of a window L, >= 1.

    Returns:
        The same entries with the leading axes (W, L), where W = ceil(T / L), and ``mask`` (W, L), which is false where
        copies of the episode's last step fill up the last window.

    Raises:
        ValueError: If ``length`` is out of range, or the episode has an entry ``mask``.

    Example:
        >>> windows = cut_windows({"reward": np.array([1.0, 2.0, 3.0])}, length=2)
        >>> windows["reward"].tolist(), windows["mask"].tolist()
        ([[1.0, 2.0], [3.0, 3.0]], [[True, True], [True, False]])
    """
    require(length >= 1, "length", ">= 1", length)
    require("mask" not in episode, "episode", "without an entry 'mask', which the windows add", sorted(episode))
    steps = nested.length(episode)
    place = np.arange(-(-steps // length) * length).reshape(-1, length)
    windows: dict[str, Any] = nested.index(episode, np.minimum(place, steps - 1))
    return windows | {"mask": place < steps}


def _write(columns: Any, row: int, step: Any, path: str) -> None:
    if not isinstance(columns, dict):
        columns[row] = step
        return
    if columns.keys() != step.keys():
        raise ValueError(f"{path or 'a step'} must have the keys {sorted(columns)}, got {sorted(step)}")
    for name, column in columns.items():
        _write(column, row, step[name], f"{path}.{name}" if path else name)
