"""An env whose level is set in each of the three ways."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class LevelEnv(gym.Env[Any, Any]):
    """Observes (level, wind, the reset option "start", step); the reward of each of three steps is the level.

    ``mark`` is a file; if there is none, action 1 creates it and ends the process. ``engine`` cannot be saved.
    """

    def __init__(self, level: float = 0.0, mark: str = "", is_opaque: bool = False) -> None:
        self.observation_space = spaces.Box(-100, 100, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.level, self.wind, self.start, self.steps = level, 0.0, 0.0, 0
        self.mark = mark
        self.engine = object() if is_opaque else None

    def set_wind(self, wind: float, factor: float = 1.0) -> None:
        self.wind = wind * factor

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.start, self.steps = (options or {}).get("start", 0.0), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        if self.mark and action == 1 and not Path(self.mark).exists():
            Path(self.mark).touch()
            os._exit(3)
        self.steps += 1
        return self._obs(), float(self.level), False, self.steps == 3, {}

    def _obs(self) -> Any:
        return np.array([self.level, self.wind, self.start, self.steps], np.float32)
