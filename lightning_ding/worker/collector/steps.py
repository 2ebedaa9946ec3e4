"""Steps of N envs side by side, and cutting them: into episodes, and episodes into windows.

Shapes: N envs, T steps of an episode, L steps of a window, W windows.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require


class StepTable:
    """The newest steps of N envs in columns with the leading axes (time, N), from which episodes are cut in one piece.

    Args:
        capacity: Steps that there is room for at first, >= 1; there is more when an episode is longer.

    Example:
        >>> table = StepTable()
        >>> for reward in ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0]):
        ...     table.append({"reward": torch.tensor(reward)}, alive=2)
        >>> table.cut(env_id=1, length=2)
        {'reward': tensor([4., 6.])}
    """

    def __init__(self, capacity: int = 64) -> None:
        self._capacity = capacity
        self._size = 0
        self._columns: Any = None

    def append(self, step: dict[str, Any], alive: int) -> None:
        """Add a step.

        Args:
            step: Nested tensors with leading axis N.
            alive: How many of the newest steps, before this one, may still be asked for; older ones may go.

        Raises:
            ValueError: If the step has other entries than the ones before.
        """
        if self._columns is None:
            self._columns = nested.apply(lambda x: x.new_empty((self._capacity, *x.shape)), step)
        if self._size == self._capacity:
            self._make_room(alive)
        _write(self._columns, self._size, step, "")
        self._size += 1

    def cut(self, env_id: int, length: int) -> dict[str, Any]:
        """Return a copy of the newest steps of an env.

        Args:
            env_id: Which env, in [0, N).
            length: How many steps, T.
        """
        steps = slice(self._size - length, self._size)
        episode: dict[str, Any] = nested.apply(lambda x: x[steps, env_id].clone(), self._columns)
        return episode

    def newest(self, amount: int) -> dict[str, Any] | None:
        """Return a view of the newest steps of all envs, leading axes (time, N); None if there are none."""
        if not amount or self._columns is None:
            return None
        steps: dict[str, Any] = nested.index(self._columns, slice(self._size - amount, self._size))
        return steps

    @classmethod
    def of(cls, steps: dict[str, Any] | None) -> StepTable:
        """Return a table of steps that ``newest`` returned."""
        table = cls()
        for number, step in enumerate(nested.unbind(steps) if steps is not None else ()):
            table.append(cast("dict[str, Any]", step), alive=number)
        return table

    def _make_room(self, alive: int) -> None:
        newest = slice(self._size - alive, self._size)
        if alive > self._capacity // 2:
            self._capacity *= 2

        def move(column: Tensor) -> Tensor:
            moved = column if len(column) == self._capacity else column.new_empty((self._capacity, *column.shape[1:]))
            moved[:alive] = column[newest]  # within one column the two do not overlap
            return moved

        self._columns = nested.apply(move, self._columns)
        self._size = alive


def cut_windows(episode: dict[str, Any], length: int) -> dict[str, Any]:
    """Return an episode in windows of equal length.

    Args:
        episode: Nested tensors with leading axis T >= 1.
        length: L, >= 1.

    Returns:
        The same entries with the leading axes (W, L), where W = ceil(T / L), and ``mask`` (W, L): false where the last
        window was filled up with copies of the episode's last step.

    Raises:
        ValueError: If ``length`` is out of range, or the episode has a ``mask`` of its own.

    Example:
        >>> windows = cut_windows({"reward": torch.tensor([1.0, 2.0, 3.0])}, length=2)
        >>> windows["reward"].tolist(), windows["mask"].tolist()
        ([[1.0, 2.0], [3.0, 3.0]], [[True, True], [True, False]])
    """
    require(length >= 1, "length", ">= 1", length)
    require("mask" not in episode, "episode", "without an entry 'mask', which windows need themselves", sorted(episode))
    steps = nested.length(episode)
    place = torch.arange(-(-steps // length) * length).view(-1, length)
    windows: dict[str, Any] = nested.index(episode, place.clamp(max=steps - 1))
    return windows | {"mask": place < steps}


def _write(columns: Any, row: int, step: Any, path: str) -> None:
    if not isinstance(columns, dict):
        columns[row] = step
        return
    if columns.keys() != step.keys():
        raise ValueError(f"{path or 'a step'} must have the keys {sorted(columns)}, got {sorted(step)}")
    for name, column in columns.items():
        _write(column, row, step[name], f"{path}.{name}" if path else name)
