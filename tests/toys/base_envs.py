"""An env with DI-engine's interface, for tests. Nothing here imports torch, so that env processes start quickly."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from lightning_ding.di_engine.base_env import BaseEnv, BaseEnvTimestep


class Walk(BaseEnv):
    """An env as its users write them: the observation is made of random numbers and of the position.

    An episode ends after ``cfg.length`` steps, and is truncated if ``cfg.truncated`` is set.
    """

    def __init__(self, cfg: Any) -> None:
        self._cfg = cfg
        self._seed: int | None = None
        self._dynamic_seed = True
        self.seeds: list[tuple[int, bool]] = []
        self.actions: list[Any] = []
        self.videos: list[str] = []
        self.is_closed = False

    def reset(self) -> Any:
        self.observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)  # only known from here on
        self.action_space = gym.spaces.Discrete(2)
        self.reward_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        if self._seed is not None:
            start = self._seed + (100 * np.random.randint(1, 1000) if self._dynamic_seed else 0)
            self.numbers = np.random.RandomState(start)
        else:
            self.numbers = np.random.RandomState()
        self.position, self.steps, self.total = 0, 0, 0.0
        return self._obs()

    def step(self, action: Any) -> BaseEnvTimestep:
        assert isinstance(action, np.ndarray)
        self.actions.append(action)
        self.steps += 1
        self.position += 1 if action.item() == 1 else -1
        done = self.steps == self._cfg.get("length", 3)
        reward = np.array([0.5], dtype=np.float64)
        self.total += 10.0
        info = {"TimeLimit.truncated": True} if done and self._cfg.get("truncated") else {}
        if done:
            info["eval_episode_return"] = np.array([self.total])  # type: ignore[assignment]
        return BaseEnvTimestep(self._obs(), reward, done, info)

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        self.seeds.append((seed, dynamic_seed))
        self._seed, self._dynamic_seed = seed, dynamic_seed
        np.random.seed(seed)

    def close(self) -> None:
        self.is_closed = True

    def enable_save_replay(self, replay_path: str) -> None:
        self.videos.append(replay_path)

    def _obs(self) -> Any:
        return np.array([self.position, self.numbers.uniform(-1, 1)])
