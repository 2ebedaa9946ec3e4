"""Wrappers that give a gymnasium env the observations, actions and rewards of DI-engine's env of the same game.

Nothing here imports torch, because env processes import this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require

FloatArray = NDArray[np.float32]
Info = dict[str, Any]
ANT_BEFORE_FORCES = 27
"""Numbers of an Ant's observation before its contact forces: positions and velocities."""
WORLD_FORCES = 6
"""Contact forces on the world body, which are always 0."""


class OneHotObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Turns the number of a state into one-hot vectors, joined into one.

    Args:
        env: An env with a Discrete observation space.
        sizes: Sizes of the parts of a state, whose number is counted like an index into an array of this shape; None
            for a single part.
        shift: Number that is added to the index of each part, modulo its size.

    Example:
        >>> env = OneHotObservation(gym.make("Taxi-v4"), sizes=(25, 5, 4))
        >>> env.observation(2 * 20 + 1 * 4 + 3).nonzero()[0].tolist()  # position 2, passenger at 1, destination 3
        [2, 26, 33]
    """

    def __init__(self, env: gym.Env[Any, Any], sizes: Sequence[int] | None = None, shift: int = 0) -> None:
        super().__init__(env)
        states = int(cast(spaces.Discrete, env.observation_space).n)
        self._sizes = np.array([states] if sizes is None else sizes)
        require(int(self._sizes.prod()) == states, "sizes", f"of product {states}", sizes)
        self._shift = shift
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.observation_space = spaces.Box(0.0, 1.0, (int(self._sizes.sum()),), np.float32)

    def observation(self, observation: Any) -> FloatArray:
        """Return the one-hot vectors of a state."""
        parts = np.array(np.unravel_index(int(observation), self._sizes.tolist()))
        hot = np.zeros(self.observation_space.shape or (), np.float32)
        hot[self._starts + (parts + self._shift) % self._sizes] = 1
        return hot


class ChannelsFirst(gym.ObservationWrapper[Any, Any, Any]):
    """Moves the channels of an image to the front: (height, width, channels) becomes (channels, height, width)."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        old = cast(spaces.Box, env.observation_space)
        self.observation_space = spaces.Box(_to_front(old.low), _to_front(old.high), dtype=cast(Any, old.dtype))

    def observation(self, observation: Any) -> NDArray[Any]:
        """Return the image with its channels first."""
        return _to_front(observation)


def _to_front(image: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(np.moveaxis(image, -1, 0))


class AntContactForces(gym.ObservationWrapper[Any, Any, Any]):
    """Gives Ant-v5 the 111 observations of Ant-v3, by adding the contact forces on the world body, which are 0."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        (size,) = cast("tuple[int]", env.observation_space.shape)
        self.observation_space = spaces.Box(-np.inf, np.inf, (size + WORLD_FORCES,), np.float64)

    def observation(self, observation: Any) -> NDArray[Any]:
        """Return the observation with six more zeros."""
        return np.insert(observation, [ANT_BEFORE_FORCES] * WORLD_FORCES, 0.0)


class UnitActions(gym.ActionWrapper[Any, Any, Any]):
    """Has actions in [-1, 1] and passes them to the env as they are, whatever the bounds of the env's actions.

    The policies map their actions to the bounds of the action space. With this wrapper they reach the env unscaled.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = spaces.Box(-1.0, 1.0, env.action_space.shape, np.float32)

    def action(self, action: Any) -> Any:
        """Return the action unchanged."""
        return action


class BinnedActions(gym.ActionWrapper[Any, Any, Any]):
    """Has ``bins`` equidistant values, bounds included, for each dimension of a Box of actions.

    The action space is Discrete for one dimension and MultiDiscrete for several.

    Args:
        env: An env with a Box of actions.
        bins: Number of values, >= 2.

    Example:
        >>> env = BinnedActions(gym.make("Pendulum-v1"), bins=5)
        >>> env.action_space, env.action(1).tolist()  # in [-2, 2]
        (Discrete(5), [-1.0])
    """

    def __init__(self, env: gym.Env[Any, Any], bins: int) -> None:
        super().__init__(env)
        require(bins >= 2, "bins", ">= 2", bins)
        box = cast(spaces.Box, env.action_space)
        (size,) = box.shape
        self._low = box.low.astype(np.float64)
        self._step = (box.high - self._low) / (bins - 1)
        self.action_space = spaces.Discrete(bins) if size == 1 else spaces.MultiDiscrete([bins] * size)

    def action(self, action: Any) -> FloatArray:
        """Return the values of the bins."""
        return np.asarray(self._low + self._step * np.atleast_1d(action), np.float32)


class DelayedReward(gym.Wrapper[Any, Any, Any, Any]):
    """Adds up rewards and returns the sum every ``steps`` steps and at the end of an episode; otherwise rewards are 0.

    Args:
        env: Any env.
        steps: Number of steps, >= 1.
    """

    def __init__(self, env: gym.Env[Any, Any], steps: int) -> None:
        super().__init__(env)
        require(steps >= 1, "steps", ">= 1", steps)
        self._steps = steps
        self._count, self._sum = 0, 0.0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode."""
        self._count, self._sum = 0, 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Step the env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._count += 1
        self._sum += float(reward)
        if not (terminated or truncated or self._count == self._steps):
            return obs, 0.0, terminated, truncated, info
        total, self._count, self._sum = self._sum, 0, 0.0
        return obs, total, terminated, truncated, info
