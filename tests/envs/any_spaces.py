"""An env of any spaces; its process imports no torch."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class AnySpaces(gym.Env[Any, Any]):
    """Draws its observations, asserts that actions are in their space, and ends after five steps."""

    acted: ClassVar[list[Any]] = []

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any], mask: Any = None) -> None:
        self.observation_space = observation
        self.action_space = action
        self._mask = mask
        if mask is not None:
            legal = spaces.MultiBinary(len(mask))
            self.observation_space = spaces.Dict({"observation": observation, "action_mask": legal})
        self._drawn = copy.deepcopy(observation)

    def _observe(self) -> Any:
        obs = self._drawn.sample()
        return obs if self._mask is None else {"observation": obs, "action_mask": np.array(self._mask, np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self._drawn.seed(seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        AnySpaces.acted.append(action)
        self._steps += 1
        return self._observe(), float(self._steps), self._steps == 5, False, {}
