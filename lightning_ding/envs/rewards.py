"""Wrappers that change the rewards to learn from, and report the rewards of the env for logs.

All of them work on a single env and on a vector env. The raw reward of a step is ``info["raw_reward"]``, from which
collectors compute the returns that they log.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers
from gymnasium.vector import VectorEnv, VectorWrapper

from lightning_ding.config import require

Info = dict[str, Any]
AnyEnv = gym.Env[Any, Any] | VectorEnv[Any, Any, Any]


class RawReward(gym.Wrapper[Any, Any, Any, Any]):
    """Reports the reward of each step as ``info["raw_reward"]``, unless the env already reports one."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Step the env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {"raw_reward": float(reward), **info}


class VectorRawReward(VectorWrapper):
    """Reports the rewards of each step of N envs as ``info["raw_reward"]``, shape (N,), unless there are some."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Info]:
        """Step the envs."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        return obs, reward, terminated, truncated, {"raw_reward": np.array(reward, np.float64), **info}


class ClipToSign(gym.RewardWrapper[Any, Any]):
    """Clips rewards to -1, 0 or 1."""

    def reward(self, reward: Any) -> float:
        """Return the sign of the reward."""
        return float(np.sign(reward))


def clip_reward(env: AnyEnv, min_reward: float | None = -1.0, max_reward: float | None = 1.0) -> AnyEnv:
    """Return the env with rewards that are clipped to an interval.

    Args:
        env: An env or a vector env.
        min_reward: Smallest reward; None for no limit.
        max_reward: Largest reward; None for no limit.

    Example:
        >>> clip_reward(gym.make("CartPole-v1"), max_reward=0.5).reset(seed=0)[1]
        {}
    """
    if isinstance(env, VectorEnv):
        return wrappers.vector.ClipReward(VectorRawReward(env), min_reward, max_reward)
    return wrappers.ClipReward(RawReward(env), min_reward, max_reward)


def sign_reward(env: AnyEnv) -> AnyEnv:
    """Return the env with rewards of -1, 0 or 1, so that one learning rate suits games with different scores."""
    if isinstance(env, VectorEnv):
        return wrappers.vector.TransformReward(VectorRawReward(env), np.sign)
    return ClipToSign(RawReward(env))


def scale_reward(env: AnyEnv, scale: float) -> AnyEnv:
    """Return the env with rewards that are multiplied by a factor.

    Args:
        env: An env or a vector env.
        scale: Factor, > 0.

    Raises:
        ValueError: If the factor is not positive.
    """
    require(0 < scale < float("inf"), "scale", "> 0", scale)
    multiply = functools.partial(operator.mul, float(scale))
    if isinstance(env, VectorEnv):
        return wrappers.vector.TransformReward(VectorRawReward(env), multiply)
    return wrappers.TransformReward(RawReward(env), multiply)
