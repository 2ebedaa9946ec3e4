"""An env that needs exploration: a corridor with a reward at its far end only.

Which action moves on differs from cell to cell, and the other one leads back to the start, so the number of cells that
random actions reach grows with the logarithm of their number only.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require


class CorridorEnv(gym.Env[NDArray[np.float32], np.int64]):
    """Walk from the first cell of a corridor to the last one, which has the only reward, 1.

    An observation is the cell as a one-hot vector. One of two actions moves to the next cell, the other one to the first
    cell. Which one it is was drawn at random for each cell, and is the same in all episodes. An episode ends at the last
    cell, and is truncated after twice as many steps as there are cells.

    Args:
        length: Number of cells, >= 2.
        layout: Seed of the actions that move on, >= 0.

    Example:
        >>> env = CorridorEnv(length=3)
        >>> env.reset()[0].tolist(), env.step(env.onward[0])[0].tolist()
        ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    """

    def __init__(self, length: int = 20, layout: int = 0) -> None:
        require(length >= 2, "length", ">= 2", length)
        self.length = length
        self.onward: NDArray[np.int64] = np.random.default_rng(layout).integers(2, size=length)
        """The action that moves on, for each cell, shape (length,)."""
        self.observation_space: Any = spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._cell = self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start in the first cell."""
        super().reset(seed=seed)
        self._cell = self._steps = 0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move to the next cell or to the first one."""
        self._cell = self._cell + 1 if action == self.onward[self._cell] else 0
        self._steps += 1
        is_there = self._cell == self.length - 1
        return self._obs(), float(is_there), is_there, not is_there and self._steps == 2 * self.length, {}

    def _obs(self) -> NDArray[np.float32]:
        return (np.arange(self.length) == self._cell).astype(np.float32)
