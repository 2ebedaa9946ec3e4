"""An env that needs exploration: a corridor that winds through a square, with a reward at its far end only."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require

MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))  # right, down, left, up


class CorridorEnv(gym.Env[NDArray[np.float32], np.int64]):
    """Walk from the first cell of a winding corridor to the last one, which has the only reward, 1.

    The rows of a square are joined at their right and left ends in turn. An observation is the row and the column,
    from -1 to 1. The actions are right, down, left and up; a move into a wall has no effect. An episode ends at the
    last cell. It is truncated after twice as many steps as there are cells. Random actions and a constant action do not
    reach the end: a random walk passes only a few cells.

    Args:
        size: Number of rows and of columns, >= 2.

    Example:
        >>> env = CorridorEnv(size=2)
        >>> env.reset()[0].tolist(), env.step(0)[0].tolist(), env.step(1)[0].tolist()
        ([-1.0, -1.0], [-1.0, 1.0], [1.0, 1.0])
    """

    def __init__(self, size: int = 5) -> None:
        require(size >= 2, "size", ">= 2", size)
        self.size = size
        self.observation_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(len(MOVES))
        self._row = self._column = self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start in the first cell."""
        super().reset(seed=seed)
        self._row = self._column = self._steps = 0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move to a neighbouring cell, unless there is a wall."""
        down, right = MOVES[int(action)]
        row, column, last = self._row + down, self._column + right, self.size - 1
        opening = last if min(row, self._row) % 2 == 0 else 0  # column where this row and the next one are joined
        if 0 <= row <= last and 0 <= column <= last and (not down or column == opening):
            self._row, self._column = row, column
        self._steps += 1
        is_there = self._row == last and self._column == (last if last % 2 == 0 else 0)
        is_late = self._steps == 2 * self.size**2
        return self._obs(), float(is_there), is_there, is_late and not is_there, {}

    def _obs(self) -> NDArray[np.float32]:
        return (2 * np.array([self._row, self._column]) / (self.size - 1) - 1).astype(np.float32)
