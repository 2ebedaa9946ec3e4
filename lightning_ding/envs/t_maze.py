"""A T-maze: remember a cue until the end of a corridor, to show that a policy has memory.

Paper: Bakker 2001, section 4.1 (https://papers.nips.cc/paper/1953-reinforcement-learning-with-long-short-term-memory).

Importing this module registers ``TMaze-v0``, with a corridor of 20 steps. As an ``env_id`` write
``lightning_ding.envs.t_maze:TMaze-v0``.

Where this differs: an observation has no bit for the corridor, there is no action that walks back, and the rewards are
1, -1, -0.1 and 0 instead of 4 and -0.1.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require

Obs = NDArray[np.float32]


class TMazeEnv(gym.Env[Obs, np.int64]):
    """A corridor to walk along: the first observation shows where to turn at its end.

    The observation is the cue, -1 or 1 in the first step and 0 later, and 1 at the junction. Of the actions, 0 walks
    on, and 1 and 2 turn, which is possible at the junction only and ends the episode: after the cue 1 the action 1
    earns 1 and the action 2 earns -1, after the cue -1 it is the other way round. What is not possible costs 0.1. An
    episode is truncated after ``10 * length`` steps.

    The best return is 1. Without memory it is 0 at most: turns after one cue earn what the same turns after the other
    cue lose, and never turning at the junction costs ``0.9 * length``.

    Args:
        length: Steps of the corridor, >= 1, for which the cue must be remembered.

    Example:
        >>> env = TMazeEnv(length=1)
        >>> cue, _ = env.reset(seed=0)
        >>> env.step(1)[1:3], env.step(0)[1:3], env.step(1 if cue[0] > 0 else 2)[1:3]
        ((-0.1, False), (0.0, False), (1.0, True))
    """

    def __init__(self, length: int = 20) -> None:
        require(length >= 1, "length", ">= 1", length)
        self.length = length
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Draw a cue."""
        super().reset(seed=seed)
        self._step, self._place, self._cue = 0, 0, 2 * int(self.np_random.integers(2)) - 1
        return np.array([self._cue, 0.0], np.float32), {}

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Walk on, or turn at the junction."""
        self._step += 1
        is_turn, is_junction = int(action) > 0, self._place == self.length
        reward = 0.0 if is_turn == is_junction else -0.1
        if is_turn and is_junction:
            reward = 1.0 if (int(action) == 1) == (self._cue == 1) else -1.0
        self._place += not is_turn and not is_junction
        obs = np.array([0.0, self._place == self.length], np.float32)
        return obs, reward, is_turn and is_junction, self._step == 10 * self.length, {}


gym.register("TMaze-v0", entry_point=f"{__name__}:TMazeEnv")
