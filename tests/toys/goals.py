"""An env with goals, for hindsight replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class ReachEnv(gym.Env[Any, Any]):
    """A point in a square moves by up to 0.2; each of 20 steps that ends farther than 0.1 from the goal costs 1."""

    def __init__(self) -> None:
        box = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), box))
        self.action_space = box
        self._place = self._goal = np.zeros(2, np.float32)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        self._steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place = np.clip(self._place + 0.2 * action, -1, 1).astype(np.float32)
        self._steps += 1
        return self._obs(), float(self.compute_reward(self._place, self._goal, {})), False, self._steps == 20, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Mapping[str, Any]) -> NDArray[np.float32]:
        return np.asarray(-(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.1).astype(np.float32))

    def _obs(self) -> dict[str, Any]:
        return {"observation": self._place, "achieved_goal": self._place, "desired_goal": self._goal}
