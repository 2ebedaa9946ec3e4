"""Envs that show only a part of their state, for policies with memory.

Importing this module registers ``CartPoleNoVelocity-v1``: CartPole-v1 that shows the position of the cart and the angle
of the pole, and neither of their velocities. As an ``env_id`` write
``lightning_ding.envs.partly_observed:CartPoleNoVelocity-v1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require

POSITIONS = (0, 2)  # of CartPole: the cart's position, and the angle of the pole


class SelectEntries(gym.ObservationWrapper[Any, Any, Any]):
    """Shows some entries of a vector observation.

    Args:
        env: An env whose observations are a Box with one axis.
        entries: Numbers of the entries to show, at least one.

    Raises:
        TypeError: If the observations are something else.
        ValueError: If an entry does not exist, or there is none.

    Example:
        >>> env = SelectEntries(gym.make("CartPole-v1"), entries=[0, 2])
        >>> env.observation_space.shape, env.reset(seed=0)[0].shape
        ((2,), (2,))
    """

    def __init__(self, env: gym.Env[Any, Any], entries: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise TypeError(f"the observation space must be a Box with one axis, got {space}")
        size = space.shape[0]
        is_known = len(entries) > 0 and all(0 <= entry < size for entry in entries)
        require(is_known, "entries", f"at least one number in [0, {size})", list(entries))
        self.entries = list(entries)
        dtype: Any = space.dtype
        self.observation_space = spaces.Box(space.low[self.entries], space.high[self.entries], dtype=dtype)

    def observation(self, observation: NDArray[Any]) -> NDArray[Any]:
        """Return the entries of an observation."""
        return np.asarray(observation)[self.entries]


def make_cartpole(**kwargs: Any) -> gym.Env[Any, Any]:
    """Return CartPole-v1 without velocities and without a time limit; the registered id has one of 500 steps."""
    return SelectEntries(gym.make("CartPole-v1", max_episode_steps=-1, **kwargs), POSITIONS)


gym.register("CartPoleNoVelocity-v1", entry_point=f"{__name__}:make_cartpole", max_episode_steps=500)
