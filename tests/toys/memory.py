"""Envs whose first step decides their return, so what an algorithm learns from the first steps of episodes is seen."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require

Info = dict[str, Any]
Obs = NDArray[np.float32]


class FirstActionEnv(gym.Env[Obs, Any]):
    """The first observation shows one of two contexts; the first action earns 1 if it is the context, the others 0.

    The observation is the context one-hot, and (0, 0) after the first step.

    Args:
        length: Steps of an episode, >= 1.
        terminate: Whether the last step terminates the episode; otherwise it is truncated.

    Example:
        >>> env = FirstActionEnv(length=2)
        >>> obs, _ = env.reset(seed=0)
        >>> env.step(int(obs.argmax()))[1], env.step(0)[1:4]
        (1.0, (0.0, True, False))
    """

    def __init__(self, length: int = 32, terminate: bool = True) -> None:
        require(length >= 1, "length", ">= 1", length)
        self.length, self.terminate = length, terminate
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        """Draw a context."""
        super().reset(seed=seed)
        self._step, self._context = 0, int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self._context], {}

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, Info]:
        """Reward the first action."""
        reward = float(self._step == 0 and int(action) == self._context)
        self._step += 1
        is_over = self._step == self.length
        return np.zeros(2, np.float32), reward, is_over and self.terminate, is_over and not self.terminate, {}


class CueEnv(gym.Env[Obs, Any]):
    """A T-maze (Bakker 2001): the first observation shows the side on which the last action must turn.

    The observation is the cue, -1 or 1 in the first step and 0 later, and 1 at the junction, which is the last step.
    There the action 1 is right after the cue 1, and the action 0 after the cue -1. It earns 1, the other one -1.

    Args:
        length: Steps of an episode, >= 2; the cue must be remembered for one less.

    Example:
        >>> env = CueEnv(length=2)
        >>> cue, _ = env.reset(seed=0)
        >>> env.step(0)[1], env.step(int(cue[0] > 0))[1]
        (0.0, 1.0)
    """

    def __init__(self, length: int = 10) -> None:
        require(length >= 2, "length", ">= 2", length)
        self.length = length
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        """Draw a cue."""
        super().reset(seed=seed)
        self._step, self._cue = 0, 2 * int(self.np_random.integers(2)) - 1
        return np.array([self._cue, 0.0], np.float32), {}

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, Info]:
        """Move on, or turn at the junction."""
        self._step += 1
        if self._step == self.length:
            return np.zeros(2, np.float32), 1.0 if 2 * int(action) - 1 == self._cue else -1.0, True, False, {}
        return np.array([0.0, self._step == self.length - 1], np.float32), 0.0, False, False, {}
