"""A gymnasium env with DI-engine's interface, for code that uses ``DingEnvWrapper``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from lightning_ding.config import require
from lightning_ding.di_engine.base_env import BaseEnv, BaseEnvTimestep
from lightning_ding.di_engine.gym_wrappers import OldEnv, is_old_env
from lightning_ding.envs.atari import make_atari
from lightning_ding.envs.wrappers import record_videos

NAMES = ("default", "mujoco_default", "atari_default")


class DingEnvWrapper(BaseEnv):
    """Gives a gymnasium env, or the env with the id ``cfg.env_id``, the interface of :class:`BaseEnv`.

    Args:
        env: An env of gymnasium, or of the package gym, with a warning; None makes ``cfg.env_id`` with gymnasium at the
            first ``reset``.
        cfg: Mapping with these entries: ``env_id``; ``env_wrapper``, either ``"default"``, ``"mujoco_default"``,
            ``"atari_default"`` (the preprocessing of ``make_atari``, without ``env``), or a list of functions that take
            and return an env; ``act_scale``, whether actions are clipped to [-1, 1] and scaled to the bounds of the
            env; ``rew_clip``, whether rewards are at least -10. Others are ignored, because envs share a section.
        seed_api: Whether seeds are passed to the env.
        caller: Use of the env; with ``"evaluator"``, the games of ``"atari_default"`` are complete and unclipped.
        is_gymnasium: Without effect: the class of ``env`` says from which package it is.

    Raises:
        TypeError: If ``env`` is no env of either package.
        ValueError: If an argument has a value that is not allowed.

    Example:
        >>> env = DingEnvWrapper(gym.make("CartPole-v1"))
        >>> env.reset().shape, env.step(np.array([0])).reward
        ((4,), array([1.], dtype=float32))
    """

    def __init__(
        self,
        env: gym.Env[Any, Any] | None = None,
        cfg: Mapping[str, Any] | None = None,
        seed_api: bool = True,
        caller: Literal["collector", "evaluator"] = "collector",
        is_gymnasium: bool = True,
    ) -> None:
        super().__init__(dict(cfg or {}))
        wrapper = self._cfg.get("env_wrapper", "default")
        require(caller in ("collector", "evaluator"), "caller", "'collector' or 'evaluator'", caller)
        env_id = self._cfg.get("env_id")
        require(env is not None or isinstance(env_id, str), "cfg.env_id", "the id of an env, without env", env_id)
        if env is not None and wrapper == "atari_default":
            raise ValueError('env must be None with env_wrapper "atari_default", which makes the game cfg.env_id')
        is_known = wrapper in NAMES if isinstance(wrapper, str) else all(callable(one) for one in wrapper)
        require(is_known, "cfg.env_wrapper", f"one of {NAMES} or a list of functions", wrapper)
        if is_old_env(env):
            env = OldEnv(env)
        if env is not None and not isinstance(env, gym.Env):
            raise TypeError(f"env must be a gymnasium.Env, got {type(env).__name__}")
        self._seed_api, self._caller = seed_api, caller
        self._seed: int | None = None
        self._dynamic_seed = True
        self._replay_path: str | None = None
        self._return = 0.0
        self._env: Any = None
        if env is not None:
            self._start(env)

    def reset(self) -> Any:
        """Start an episode and return the first observation."""
        if self._env is None:
            self._start(self._make())
        if self._replay_path is not None:
            self._env, self._replay_path = record_videos(self._env, self._replay_path), None
        seed = self._seed
        if seed is not None and self._dynamic_seed:
            seed += 100 * np.random.randint(1, 1000)
        if seed is not None:
            self.action_space.seed(seed)
        self._return = 0.0
        return self._env.reset(seed=seed if self._seed_api else None)[0]

    def step(self, action: Any) -> BaseEnvTimestep:
        """Step the env; ``info["TimeLimit.truncated"]`` tells whether the episode was truncated."""
        box = self._env.action_space
        if isinstance(box, gym.spaces.Box):
            action = np.asarray(action, box.dtype).reshape(box.shape)
            if self._cfg.get("act_scale", False):
                action = box.low + (action.clip(-1, 1) + 1) / 2 * (box.high - box.low)
        elif isinstance(action, np.ndarray) and action.size == 1 and box.shape == ():
            action = action.item()
        obs, reward, terminated, truncated, info = self._env.step(action)
        self._return += float(reward)
        if terminated or truncated:
            info |= {"TimeLimit.truncated": truncated and not terminated, "eval_episode_return": self._return}
        if self._cfg.get("rew_clip", False):
            reward = max(-10.0, float(reward))
        return BaseEnvTimestep(obs, np.array([reward], np.float32), terminated or truncated, info)

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """Set the seed of the following episodes."""
        self._seed, self._dynamic_seed = seed, dynamic_seed

    def close(self) -> None:
        """Close the env, if it was made."""
        if self._env is not None:
            self._env.close()

    def enable_save_replay(self, replay_path: str = "./video") -> None:
        """Write a video of each following episode to a folder (extra ``video``)."""
        self._replay_path = replay_path

    @staticmethod
    def create_collector_env_cfg(cfg: Any) -> list[Any]:
        """Return a config for each env that collects data."""
        return [{**cfg, "is_train": True}] * cfg.pop("collector_env_num")

    @staticmethod
    def create_evaluator_env_cfg(cfg: Any) -> list[Any]:
        """Return a config for each env of evaluations."""
        return [{**cfg, "is_train": False}] * cfg.pop("evaluator_env_num")

    def _make(self) -> gym.Env[Any, Any]:
        env_id = self._cfg["env_id"]
        if self._cfg.get("env_wrapper") == "atari_default":
            repeats = 0.0 if env_id.endswith("-v4") else 0.25  # as the versions are defined
            return make_atari(env_id, self._caller == "collector", repeats)
        return gym.make(env_id, render_mode=None if self._replay_path is None else "rgb_array")

    def _start(self, env: gym.Env[Any, Any]) -> None:
        wrappers = self._cfg.get("env_wrapper", "default")
        for wrapper in [] if isinstance(wrappers, str) else wrappers:
            env = wrapper(env)
        self._env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.reward_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
