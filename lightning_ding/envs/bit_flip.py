"""An env with goals: flip single bits until all of them are as wanted.

It is the example of Andrychowicz et al. 2017, section 3.1 (https://arxiv.org/abs/1707.01495): with n bits there are 2^n
states, so exploration alone does not find a goal with many bits.

Where this differs: a step is rewarded with 1 at the goal and with 0 elsewhere, instead of 0 and -1, and an episode ends
at the goal, so that the return of an episode is 1 if it reached its goal and 0 if it did not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require

Bits = NDArray[np.float32]


class BitFlipEnv(gym.Env[dict[str, Bits], np.int64]):
    """Flip bits until they equal a goal; bits and goal are random, and differ, at the start of an episode.

    An observation has the entries ``observation`` and ``achieved_goal``, both the bits, and ``desired_goal``, as the
    envs of gymnasium-robotics. An episode is truncated after as many steps as there are bits.

    Args:
        n_bits: Number of bits, >= 1.

    Example:
        >>> env = BitFlipEnv(n_bits=3)
        >>> env.compute_reward(np.array([[0, 1, 1], [1, 1, 1]]), np.ones((2, 3)), {})
        array([0., 1.], dtype=float32)
    """

    def __init__(self, n_bits: int = 15) -> None:
        require(n_bits >= 1, "n_bits", ">= 1", n_bits)
        self.n_bits = n_bits
        box = spaces.Box(0.0, 1.0, (n_bits,), np.float32)
        entries: dict[str, Any] = dict.fromkeys(("observation", "achieved_goal", "desired_goal"), box)
        self.observation_space: Any = spaces.Dict(entries)
        self.action_space = spaces.Discrete(n_bits)
        self._bits: Bits = np.zeros(n_bits, dtype=np.float32)
        self._goal: Bits = np.ones(n_bits, dtype=np.float32)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Bits], dict[str, Any]]:
        """Start with random bits and another random goal."""
        super().reset(seed=seed)
        self._bits = self.np_random.integers(2, size=self.n_bits).astype(np.float32)
        wrong = self.np_random.integers(2, size=self.n_bits)
        wrong[self.np_random.integers(self.n_bits)] = 1
        self._goal = np.abs(self._bits - wrong).astype(np.float32)
        self._steps = 0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[dict[str, Bits], float, bool, bool, dict[str, Any]]:
        """Flip the bit at the index ``action``."""
        self._bits[action] = 1 - self._bits[action]
        self._steps += 1
        terminated = bool(self.compute_terminated(self._bits, self._goal, {}))
        reward = float(self.compute_reward(self._bits, self._goal, {}))
        return self._obs(), reward, terminated, not terminated and self._steps >= self.n_bits, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Mapping[str, Any]) -> NDArray[np.float32]:
        """Return 1 where all bits are as wanted and 0 elsewhere, shape (...), of bits and goals, shape (..., n)."""
        return np.asarray(self.compute_terminated(achieved_goal, desired_goal, info), dtype=np.float32)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Return whether all bits are as wanted, shape (...), of bits and goals, shape (..., n)."""
        return np.asarray((np.asarray(achieved_goal) == np.asarray(desired_goal)).all(axis=-1))

    def compute_truncated(self, achieved_goal: Any, desired_goal: Any, info: Mapping[str, Any]) -> bool:
        """Return False: goals do not truncate an episode, the number of steps does."""
        return False

    def _obs(self) -> dict[str, Bits]:
        return {"observation": self._bits.copy(), "achieved_goal": self._bits.copy(), "desired_goal": self._goal.copy()}
