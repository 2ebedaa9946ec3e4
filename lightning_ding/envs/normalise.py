"""Observations and rewards of a vector env, normalised by what was seen of them.

Gymnasium 1.4's ``vector.NormalizeObservation`` refuses the autoreset mode SAME_STEP and resets of some envs alone.

Shapes: N envs.
"""

from __future__ import annotations

from typing import Any, Union, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.envs.statistics import RunningStatistics
from lightning_ding.envs.stepper import merge_rows, with_final_obs

Array = NDArray[Any]
BoolArray = NDArray[np.bool_]
Info = dict[str, Any]
Statistics = Union[RunningStatistics, dict[str, "Statistics"]]  # noqa: UP007 - `|` cannot join a class and a name
"""The statistics of a space, or of the entries of a Dict space that are normalised."""


class NormaliseObservation(VectorWrapper[Any, Any, Any, Any, Any]):
    """Shifts and scales observations to mean 0 and standard deviation 1 of all that were seen, entry by entry.

    A transition counts in every autoreset mode what it reached, and an episode its first observation: a final one in
    ``info["final_obs"]`` counts once, a reset of some envs alone counts those, and a step of an env that is paused or
    reported a fault counts nothing. What is not finite is handed on as it is, so that ``EnvStepper`` names the env.

    In a Dict space, ``action_mask`` and entries of integers stay as they are.

    Args:
        env: A vector env with a Box or Dict space of observations.
        clip: Normalised observations stay in [-clip, clip]; > 0.
        epsilon: Is added to the variance; > 0.
        statistics: Those of another env, for evaluating; this env reads and never changes them unless ``training`` is
            set. By default the env has its own and is training.

    Raises:
        ValueError: If nothing in the observations can be normalised, or the statistics are of other observations.
    """

    def __init__(
        self, env: VectorEnv, clip: float = 10.0, epsilon: float = 1e-8, statistics: Statistics | None = None
    ) -> None:
        super().__init__(env)
        _check_range(clip, epsilon)
        own = _make_statistics(env.single_observation_space)
        allowed = "a Box of floats, or a Dict with one that is not called action_mask"
        if own is None:
            raise ValueError(f"env.single_observation_space must be {allowed}, got {env.single_observation_space}")
        if statistics is not None and _shapes(statistics) != _shapes(own):
            raise ValueError(f"statistics must be of the shapes {_shapes(own)}, got {_shapes(statistics)}")
        self.clip, self.epsilon = clip, epsilon
        self.statistics = own if statistics is None else statistics
        self.training = statistics is None
        """Whether observations change the statistics."""
        self.single_observation_space = _space(env.single_observation_space, own, clip)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start episodes; with ``options["reset_mask"]`` in those envs alone."""
        rows = _reset_rows(options, self.num_envs)
        obs, info = self.env.reset(seed=seed, options=options)
        return self._normalise(obs, rows), info

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, Info]:
        """Step the envs."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        ended = terminated | truncated
        counted = ~_stands_out(info, ended)
        if self.env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP or not ended.any():
            return self._normalise(obs, counted), reward, terminated, truncated, info
        reached = self._normalise(with_final_obs(obs, info["final_obs"], ended), counted)
        final_obs = np.full(self.num_envs, None, dtype=object)
        for row in np.flatnonzero(ended):
            final_obs[row] = _row(reached, row)
        obs = merge_rows(self._normalise(obs, ended), reached, ended)
        return obs, reward, terminated, truncated, {**info, "final_obs": final_obs}

    @property
    def has_seen(self) -> bool:
        """Whether the statistics are of any observation."""
        return all(statistics.count > 0 for statistics in _leaves(self.statistics))

    def merge_over_ranks(self, device: torch.device | str = "cpu") -> None:
        """Give all ranks the statistics of the observations of all; see ``RunningStatistics``."""
        for statistics in _leaves(self.statistics):
            statistics.merge_over_ranks(device)

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics as tensors and builtins."""
        return _state(self.statistics)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the statistics that ``state_dict`` returned."""
        _load(self.statistics, state)

    def episode_state(self) -> dict[str, Any]:
        """Return what is remembered of the episodes under way: nothing; see ``envs.state``."""
        return {}

    def load_episode_state(self, state: dict[str, Any]) -> None:
        """Take what ``episode_state`` returned."""

    def _normalise(self, obs: Any, counted: BoolArray) -> Any:
        return self._normalise_part(obs, self.statistics, counted)

    def _normalise_part(self, obs: Any, statistics: Statistics, counted: BoolArray) -> Any:
        if isinstance(statistics, dict):
            return {
                name: self._normalise_part(part, statistics[name], counted) if name in statistics else part
                for name, part in obs.items()
            }
        finite = np.isfinite(obs).reshape(len(obs), -1).all(1)
        if self.training:
            statistics.update(obs[counted & finite])
        scaled = (obs - statistics.mean) / np.sqrt(statistics.variance + self.epsilon)
        normal = scaled.clip(-self.clip, self.clip).astype(np.float32)
        if not finite.all():
            normal[~finite] = obs[~finite]
        return normal


class NormaliseReward(VectorWrapper[Any, Any, Any, Any, Any]):
    """Divides rewards by the running standard deviation of the discounted return; no mean is taken off.

    The return of an env is ``G_t = discount_factor * G_{t-1} + r_t`` from the start of its episode, as in OpenAI
    Baselines' VecNormalize. ``info["raw_reward"]``, shape (N,), keeps the reward, and the returns that collectors
    report are made of it. An env for evaluating needs no such wrapper.

    Args:
        env: A vector env.
        discount_factor: gamma, in [0, 1].
        clip: Normalised rewards stay in [-clip, clip]; > 0.
        epsilon: Is added to the variance; > 0.
        statistics: Those of another env, which this env reads and never changes unless ``training`` is set. By default
            the env has its own and is training.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        env: VectorEnv,
        discount_factor: float,
        clip: float = 10.0,
        epsilon: float = 1e-8,
        statistics: RunningStatistics | None = None,
    ) -> None:
        super().__init__(env)
        require(0 <= discount_factor <= 1, "discount_factor", "in [0, 1]", discount_factor)
        _check_range(clip, epsilon)
        self.discount_factor, self.clip, self.epsilon = discount_factor, clip, epsilon
        self.statistics = RunningStatistics(()) if statistics is None else statistics
        self.training = statistics is None
        """Whether rewards change the statistics."""
        self._return = np.zeros(env.num_envs)
        self._resetting = np.zeros(env.num_envs, dtype=bool)

    def reset(self, *, seed: Any = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start episodes; with ``options["reset_mask"]`` in those envs alone."""
        rows = _reset_rows(options, self.num_envs)
        self._return[rows] = 0
        self._resetting[rows] = False
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, Info]:
        """Step the envs."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        ended = terminated | truncated
        raw_reward = np.array(reward, dtype=np.float64)
        finite = np.isfinite(raw_reward)
        counted = finite & ~self._resetting & ~_stands_out(info, ended)
        self._return[counted] = self.discount_factor * self._return[counted] + raw_reward[counted]
        if self.training:
            self.statistics.update(self._return[counted])
        scaled = raw_reward / np.sqrt(self.statistics.variance + self.epsilon)
        normal = np.where(finite, scaled.clip(-self.clip, self.clip), raw_reward)
        self._return[ended] = 0
        if self.env.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP:
            self._resetting = ended
        return obs, normal, terminated, truncated, {**info, "raw_reward": raw_reward}

    def merge_over_ranks(self, device: torch.device | str = "cpu") -> None:
        """Give all ranks the statistics of the returns of all; see ``RunningStatistics``."""
        self.statistics.merge_over_ranks(device)

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics as tensors and builtins; the returns of episodes under way are not among them."""
        return self.statistics.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the statistics that ``state_dict`` returned."""
        self.statistics.load_state_dict(state)

    def episode_state(self) -> dict[str, Any]:
        """Return the discounted returns of the episodes under way, and which envs are being reset."""
        return {"return": self._return.copy(), "resetting": self._resetting.copy()}

    def load_episode_state(self, state: dict[str, Any]) -> None:
        """Take what ``episode_state`` returned."""
        self._return, self._resetting = state["return"].copy(), state["resetting"].copy()


def _check_range(clip: float, epsilon: float) -> None:
    require(clip > 0, "clip", "> 0", clip)
    require(epsilon > 0, "epsilon", "> 0", epsilon)


def _reset_rows(options: Info | None, num_envs: int) -> BoolArray:
    """Return which envs a reset is for; asked before the reset, because gymnasium takes the mask out of the options."""
    mask = None if options is None else options.get("reset_mask")
    return np.ones(num_envs, dtype=bool) if mask is None else np.array(mask)


def _stands_out(info: Info, ended: BoolArray) -> BoolArray:
    """Return which envs were paused or reported a fault in this step; what they gave is no part of an episode."""
    found = np.zeros(len(ended), dtype=bool)
    for key in ("paused", "abnormal"):
        flags = np.asarray(info[key]).astype(bool) if key in info else np.zeros_like(found)
        final = info.get("final_info")
        if final is not None:  # where an episode ended, info is of the reset
            flags = np.where(ended, np.asarray(final[key]).astype(bool) if key in final else False, flags)
        found |= flags
    return found


def _make_statistics(space: gym.Space[Any], name: str = "") -> Statistics | None:
    if isinstance(space, gym.spaces.Dict):
        parts = {key: _make_statistics(below, key) for key, below in space.spaces.items()}
        return {key: part for key, part in parts.items() if part is not None} or None
    is_number = isinstance(space, Box) and np.issubdtype(space.dtype, np.floating) and name != "action_mask"
    return RunningStatistics(cast("tuple[int, ...]", space.shape)) if is_number else None


def _space(space: gym.Space[Any], statistics: Statistics, clip: float) -> gym.Space[Any]:
    if isinstance(statistics, dict):
        spaces = cast(gym.spaces.Dict, space).spaces
        changed = {name: _space(spaces[name], below, clip) for name, below in statistics.items()}
        return gym.spaces.Dict({**spaces, **changed})
    return Box(-clip, clip, statistics.shape, np.float32)


def _leaves(statistics: Statistics) -> list[RunningStatistics]:
    if isinstance(statistics, dict):
        return [leaf for below in statistics.values() for leaf in _leaves(below)]
    return [statistics]


def _shapes(statistics: Statistics) -> Any:
    if isinstance(statistics, dict):
        return {name: _shapes(below) for name, below in statistics.items()}
    return statistics.shape


def _state(statistics: Statistics) -> dict[str, Any]:
    if isinstance(statistics, dict):
        return {name: _state(below) for name, below in statistics.items()}
    return statistics.state_dict()


def _load(statistics: Statistics, state: dict[str, Any]) -> None:
    if isinstance(statistics, dict):
        for name, below in statistics.items():
            _load(below, state[name])
    else:
        statistics.load_state_dict(state)


def _row(obs: Any, row: Any) -> Any:
    return {name: _row(part, row) for name, part in obs.items()} if isinstance(obs, dict) else obs[row]
