"""Envs with values in closed form, for tests of policies, collectors and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require

FloatArray = NDArray[np.float32]
Info = dict[str, Any]


class ChainEnv(gym.Env[FloatArray, np.int64]):
    """A chain of ``length`` positions; every action moves to the next one, and the last step earns the only reward, 1.

    The observation is the position, one-hot. After the last position the episode either terminates, or is truncated at
    the first position again, so that for values the chain continues forever. :meth:`value` distinguishes both cases, as
    an algorithm must.

    Args:
        length: Number of steps of an episode, >= 1.
        terminate: End episodes by termination instead of truncation.

    Example:
        >>> ChainEnv(length=3).value(position=1, discount_factor=0.5)
        0.5
        >>> ChainEnv(length=3, terminate=False).value(position=1, discount_factor=0.5)  # 0.5 / (1 - 0.5**3)
        0.5714285714285714
    """

    def __init__(self, length: int = 4, terminate: bool = True) -> None:
        require(length >= 1, "length", ">= 1", length)
        self.length = length
        self.terminate = terminate
        self.observation_space = gym.spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._position = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[FloatArray, Info]:
        """Return to the first position."""
        super().reset(seed=seed)
        self._position = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[FloatArray, float, bool, bool, Info]:
        """Move to the next position."""
        self._position = (self._position + 1) % self.length
        ended = self._position == 0
        return self._observe(), float(ended), ended and self.terminate, ended and not self.terminate, {}

    def value(self, position: int, discount_factor: float) -> float:
        """Return the discounted sum of all future rewards.

        Args:
            position: Position of the agent, in 0..length-1.
            discount_factor: gamma, in [0, 1); 1 is allowed where episodes terminate.
        """
        first_reward = discount_factor ** (self.length - 1 - position)
        return first_reward if self.terminate else first_reward / (1 - discount_factor**self.length)

    def _observe(self) -> FloatArray:
        observation = np.zeros(self.length, dtype=np.float32)
        observation[self._position] = 1
        return observation


class ConstantRewardEnv(gym.Env[FloatArray, Any]):
    """An env that gives the same reward at each step and never terminates: all values are ``reward / (1 - gamma)``.

    The observation is four new random numbers, so it tells neither the step nor what comes next. A time limit cuts
    episodes, after which values continue.

    Args:
        reward: Reward of each step.
        length: Steps of an episode until it is cut, >= 1.
        continuous: Whether an action is a number in [-1, 1]; otherwise it is 0 or 1.

    Example:
        >>> env = ConstantRewardEnv(reward=-1.0, length=1)
        >>> _ = env.reset(seed=0)
        >>> env.step(0)[1:4]
        (-1.0, False, True)
        >>> round(env.value(discount_factor=0.99))
        -100
    """

    def __init__(self, reward: float = -1.0, length: int = 25, continuous: bool = False) -> None:
        require(length >= 1, "length", ">= 1", length)
        self.reward, self.length = reward, length
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        box = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space: gym.Space[Any] = box if continuous else gym.spaces.Discrete(2)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[FloatArray, Info]:
        """Start an episode."""
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[FloatArray, float, bool, bool, Info]:
        """Give the reward."""
        self._step += 1
        return self._observe(), self.reward, False, self._step == self.length, {}

    def value(self, discount_factor: float) -> float:
        """Return the discounted sum of all future rewards, for gamma < 1."""
        return self.reward / (1 - discount_factor)

    def _observe(self) -> FloatArray:
        return self.np_random.normal(size=4).astype(np.float32)


class OneSideEnv(gym.Env[FloatArray, Any]):
    """An env of five steps in which one side of the actions earns 1/5 at each step, and the other side nothing.

    The observation is four new random numbers. Of the actions 0 and 1 the side is 0; of numbers in [-1, 1] it is what
    is below 0.

    Args:
        continuous: Whether an action is a number in [-1, 1].
    """

    def __init__(self, continuous: bool = False) -> None:
        self.continuous = continuous
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        box = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space: gym.Space[Any] = box if continuous else gym.spaces.Discrete(2)
        self._step = 0

    @property
    def best_action(self) -> Any:
        """An action of the right side: 0, or a random one between -1 and -0.5."""
        return self.np_random.uniform(-1.0, -0.5, 1).astype(np.float32) if self.continuous else np.int64(0)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[FloatArray, Info]:
        """Start an episode."""
        super().reset(seed=seed)
        self._step = 0
        return self.np_random.normal(size=4).astype(np.float32), {}

    def step(self, action: Any) -> tuple[FloatArray, float, bool, bool, Info]:
        """Reward the side."""
        self._step += 1
        is_right = bool(np.all(action < 0)) if self.continuous else int(action) == 0
        obs = self.np_random.normal(size=4).astype(np.float32)
        return obs, is_right / 5, self._step == 5, False, {}


class CountingEnv(gym.Env[FloatArray, np.int64]):
    """An env with the observation ``[number, episode, step]``, whatever the actions, and the reward t at step t.

    Every transition is known in advance, and the return of an episode of n steps is n (n + 1) / 2. Episodes and steps
    are counted from 0. Seeds have no effect.

    Args:
        number: Number of this env, the first entry of the observations.
        lengths: Numbers of steps of the episodes, each >= 1; episode e has ``lengths[e % len(lengths)]``.
        truncates: Whether episode e is truncated instead of terminated: ``truncates[e % len(truncates)]``.

    Example:
        >>> env = CountingEnv(number=7, lengths=(1, 5))
        >>> _ = env.reset()
        >>> observation, reward, terminated, truncated, _ = env.step(0)
        >>> observation.tolist(), reward, terminated, truncated
        ([7.0, 0.0, 1.0], 1.0, True, False)
        >>> env.reset()[0].tolist()
        [7.0, 1.0, 0.0]
    """

    def __init__(self, number: int = 0, lengths: Sequence[int] = (3,), truncates: Sequence[bool] = (False,)) -> None:
        require(len(lengths) >= 1 and min(lengths) >= 1, "lengths", "at least one number >= 1", lengths)
        require(len(truncates) >= 1, "truncates", "at least one bool", truncates)
        self.number = number
        self.lengths = tuple(lengths)
        self.truncates = tuple(truncates)
        self.observation_space = gym.spaces.Box(0.0, np.inf, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(4)
        self._episode = -1
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[FloatArray, Info]:
        """Start the next episode."""
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[FloatArray, float, bool, bool, Info]:
        """Count one step."""
        self._step += 1
        ended = self._step == self.lengths[self._episode % len(self.lengths)]
        is_cut = self.truncates[self._episode % len(self.truncates)]
        return self._observe(), float(self._step), ended and not is_cut, ended and is_cut, {}

    def _observe(self) -> FloatArray:
        return np.array([self.number, self._episode, self._step], dtype=np.float32)


class BreakingEnv(CountingEnv):
    """A CountingEnv that breaks at every seventh step of all."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps % 7 == 0:
            raise ArithmeticError("it broke")
        return super().step(action)
