"""Envs with data of many kinds; apart from the tests, so that processes which make them do not import torch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.toys.envs import CountingEnv


class RichEnv(gym.Env[Any, Any]):
    """Observations, actions and infos of many kinds, all drawn from the env's own stream."""

    observation_space = spaces.Dict(
        {
            "box": spaces.Box(-1, 1, (2, 3), np.float32),
            "pair": spaces.Tuple([spaces.Discrete(5, start=-2), spaces.MultiBinary(3)]),
            "many": spaces.MultiDiscrete([3, 4]),
            "byte": spaces.Box(0, 255, (4,), np.uint8),
        }
    )
    action_space = spaces.Dict({"push": spaces.Box(-1, 1, (2,), np.float32), "key": spaces.Discrete(3)})

    def __init__(self) -> None:
        self.level = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.total = 0.0 if options is None else float(options.get("total", 0.0))
        return self.observe(), {"first": int(self.np_random.integers(100))}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert isinstance(action["push"], np.ndarray)
        assert isinstance(action["key"], np.int64)
        self.total += float(action["push"].sum()) + float(action["key"]) + self.level
        ends = self.np_random.random(2) < 0.08
        infos: list[dict[str, Any]] = [{}, {"n": 3, "text": "a"}, {"array": np.arange(2), "deep": {"x": 1.5}}]
        return self.observe(), self.total, bool(ends[0]), bool(ends[1]), infos[self.np_random.integers(3)]

    def observe(self) -> Any:
        draw = self.np_random
        pair = (np.int64(draw.integers(5) - 2), draw.integers(2, size=3, dtype=np.int8))
        box = draw.random((2, 3), dtype=np.float32)
        many, byte = draw.integers(3, size=2), draw.integers(256, size=4, dtype=np.uint8)
        return {"box": box, "pair": pair, "many": many, "byte": byte}


class WordEnv(CountingEnv):
    """A CountingEnv that observes words, which have no fixed size."""

    def __init__(self) -> None:
        super().__init__(lengths=(3,))
        self.observation_space: Any = spaces.Text(9)

    def _observe(self) -> Any:
        return "x" * int(self._step)
