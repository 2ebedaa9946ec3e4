"""Vector wrappers that normalise observations and rewards by running statistics.

Gymnasium 1.4's ``vector.NormalizeObservation`` supports neither the autoreset mode SAME_STEP nor resets of single envs.

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

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.envs.checks import check_no_own_rewards
from lightning_ding.envs.stepper import merge_rows, with_final_obs
from lightning_ding.rl.running import combine_moments
from lightning_ding.utils.ranks import gather_rows, world_size
from lightning_ding.utils.teams import AGENT_STATE, ALIVE, GLOBAL_STATE, is_team

Array = NDArray[Any]
BoolArray = NDArray[np.bool_]
Info = dict[str, Any]
Moments = tuple[Array, Array, Array]
"""Count, mean, and sum of squared deviations from the mean."""


class RunningStatistics:
    """Count, mean and variance of all rows seen so far, which the ranks of a distributed run can merge.

    Rows since the last merge are also counted separately. Ranks exchange only these, so no row is counted twice.

    Args:
        shape: Shape of a row.

    Example:
        >>> statistics = RunningStatistics(())
        >>> statistics.update(np.array([1.0, 2.0, 6.0]))
        >>> statistics.count, float(statistics.mean), round(float(statistics.variance), 4)
        (3, 3.0, 4.6667)
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.shape = shape
        self._all = self._merged = self._new = _no_rows(shape)

    @property
    def count(self) -> int:
        """Number of rows seen so far."""
        return int(self._all[0])

    @property
    def mean(self) -> Array:
        """Mean of the rows, float64; 0 before the first row."""
        return self._all[1]

    @property
    def variance(self) -> Array:
        """Population variance of the rows, float64; 1 before the first row."""
        count, _, m2 = self._all
        return m2 / count if count else np.ones(self.shape)

    def update(self, rows: Array) -> None:
        """Add rows, shape (N, *shape); N may be 0."""
        if not len(rows):
            return
        mean = rows.mean(0, dtype=np.float64)
        batch = np.array(float(len(rows))), mean, np.square(rows - mean).sum(0)
        self._all = combine_moments(*self._all, *batch)
        self._new = combine_moments(*self._new, *batch)

    def merge_over_ranks(self) -> None:
        """Add the new rows of all other ranks; afterwards the statistics are equal to the last bit on all ranks.

        All ranks must call this method. With a single rank it changes nothing.
        """
        if world_size() > 1:
            new = torch.from_numpy(np.concatenate([np.ravel(part) for part in self._new]))
            self._all = self._merged
            for row in gather_rows(new).numpy():  # in the order of the ranks, so the same rounding on all of them
                self._all = combine_moments(*self._all, row[0], *row[1:].reshape(2, *self.shape))
        self._merged, self._new = self._all, _no_rows(self.shape)

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics as tensors and builtins; with several ranks, merge them first."""
        _, mean, m2 = self._all
        return {"count": self.count, "mean": torch.tensor(mean), "m2": torch.tensor(m2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned, on all ranks.

        Raises:
            ValueError: If the statistics belong to rows of a different shape.
        """
        mean, m2 = state["mean"].numpy().copy(), state["m2"].numpy().copy()
        if mean.shape != self.shape:
            raise ValueError(f"mean must be of shape {self.shape}, got {mean.shape}")
        self._all = self._merged = (np.array(float(state["count"])), mean, m2)
        self._new = _no_rows(self.shape)


def _no_rows(shape: tuple[int, ...]) -> Moments:
    return np.array(0.0), np.zeros(shape), np.zeros(shape)


Statistics = Union[RunningStatistics, dict[str, "Statistics"]]  # noqa: UP007 - `|` cannot join a class and a name
"""The statistics of a space, or of those entries of a Dict space that are normalised."""


class _Normaliser(VectorWrapper):  # without parameters, which it takes since gymnasium 1.4
    """A vector wrapper with running statistics, and the range of the values that it returns."""

    statistics: Any

    def __init__(self, env: VectorEnv, clip: float, epsilon: float, training: bool) -> None:
        super().__init__(env)
        require(clip > 0, "clip", "> 0", clip)
        require(epsilon > 0, "epsilon", "> 0", epsilon)
        self.clip, self.epsilon = clip, epsilon
        self.training = training
        """Whether the wrapper updates its statistics."""

    def merge_over_ranks(self) -> None:
        """Merge the statistics of all ranks; see ``RunningStatistics``."""
        for statistics in nested.leaves(self.statistics):
            statistics.merge_over_ranks()

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics as tensors and builtins, without the state of running episodes."""
        return cast("dict[str, Any]", nested.apply(RunningStatistics.state_dict, self.statistics))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the statistics that ``state_dict`` returned."""
        _load(self.statistics, state)


class NormaliseObservation(_Normaliser):
    """Shifts and scales the components of observations to mean 0 and standard deviation 1, by running statistics.

    In every autoreset mode, the statistics count the first observation of each episode and the observation that each
    transition reaches, including the one in ``info["final_obs"]``. A reset of single envs counts only those envs, and a
    step of an env that is paused or reported a fault is not counted. Non-finite observations are returned unchanged, so
    that ``EnvStepper`` can report them.

    In a Dict space, ``action_mask`` and integer entries are not normalised. Of a team's observations, only
    ``agent_state`` and ``global_state`` are; steps in which an agent has left are not counted, and what it sees is 0.

    Args:
        env: A vector env with a Box or Dict observation space.
        clip: Bound of normalised observations, which are clipped to [-clip, clip]; > 0.
        epsilon: Number that is added to the variance, > 0.
        statistics: Statistics of another env, for evaluation. They are updated only if ``training`` is set. By default
            the env has its own statistics and updates them.

    Raises:
        ValueError: If no part of the observations can be normalised, or the shapes of the statistics do not fit.
    """

    def __init__(
        self, env: VectorEnv, clip: float = 10.0, epsilon: float = 1e-8, statistics: Statistics | None = None
    ) -> None:
        super().__init__(env, clip, epsilon, training=statistics is None)
        own = _make_statistics(env.single_observation_space)
        allowed = "a Box of floats, or a Dict with one that is not called action_mask"
        if own is None:
            raise ValueError(f"env.single_observation_space must be {allowed}, got {env.single_observation_space}")
        if statistics is not None and _shapes(statistics) != _shapes(own):
            raise ValueError(f"statistics must be of the shapes {_shapes(own)}, got {_shapes(statistics)}")
        self.statistics = own if statistics is None else statistics
        self.single_observation_space = _space(env.single_observation_space, own, clip)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: Info | None = None) -> tuple[Any, Info]:
        """Reset all envs, or those where ``options["reset_mask"]`` is true."""
        rows = _reset_rows(options, self.num_envs)
        obs, info = self.env.reset(seed=seed, options=options)
        return self._normalise(obs, rows), info

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, Info]:
        """Step the envs."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        ended = terminated | truncated
        counted = ~_not_in_episode(info, ended)
        if self.env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP or not ended.any():
            return self._normalise(obs, counted), reward, terminated, truncated, info
        reached = self._normalise(with_final_obs(obs, info["final_obs"], ended), counted)
        final_obs = np.full(self.num_envs, None, dtype=object)
        for row in np.flatnonzero(ended):
            final_obs[row] = nested.index(reached, row)
        obs = merge_rows(self._normalise(obs, ended), reached, ended)
        return obs, reward, terminated, truncated, {**info, "final_obs": final_obs}

    @property
    def has_seen(self) -> bool:
        """Whether the statistics contain any observation."""
        return all(statistics.count > 0 for statistics in nested.leaves(self.statistics))

    def episode_state(self) -> dict[str, Any]:
        """Return the state of the running episodes, which is empty; see ``envs.state``."""
        return {}

    def load_episode_state(self, state: dict[str, Any]) -> None:
        """Restore the state that ``episode_state`` returned."""

    def _normalise(self, obs: Any, counted: BoolArray) -> Any:
        if not (is_team(self.single_observation_space) and ALIVE in obs):
            return self._normalise_part(obs, self.statistics, counted)
        alive = obs[ALIVE] > 0
        normal = self._normalise_part(obs, self.statistics, counted & alive.all(1))
        return {**normal, AGENT_STATE: normal[AGENT_STATE] * alive[..., None]}

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


class NormaliseReward(_Normaliser):
    """Divides rewards by the running standard deviation of the discounted return, without subtracting a mean.

    The return of an env is ``G_t = discount_factor * G_{t-1} + r_t`` from the start of its episode, as in VecNormalize
    of OpenAI Baselines. ``info["raw_reward"]``, shape (N,), holds the original rewards, from which collectors compute
    the returns that they report. Envs for evaluation do not need this wrapper.

    Args:
        env: A vector env.
        discount_factor: gamma, in [0, 1].
        clip: Bound of normalised rewards, which are clipped to [-clip, clip]; > 0.
        epsilon: Number that is added to the variance, > 0.
        statistics: Statistics of another env. They are updated only if ``training`` is set. By default the env has its
            own statistics and updates them.

    Raises:
        ValueError: If an argument is out of its range, or agents of a team have rewards of their own.
    """

    def __init__(
        self,
        env: VectorEnv,
        discount_factor: float,
        clip: float = 10.0,
        epsilon: float = 1e-8,
        statistics: RunningStatistics | None = None,
    ) -> None:
        check_no_own_rewards(env, "env must not be that of a team for NormaliseReward, which changes")
        super().__init__(env, clip, epsilon, training=statistics is None)
        require(0 <= discount_factor <= 1, "discount_factor", "in [0, 1]", discount_factor)
        self.discount_factor = discount_factor
        self.statistics = RunningStatistics(()) if statistics is None else statistics
        self._return = np.zeros(env.num_envs)
        self._resetting = np.zeros(env.num_envs, dtype=bool)

    def reset(self, *, seed: Any = None, options: Info | None = None) -> tuple[Any, Info]:
        """Reset all envs, or those where ``options["reset_mask"]`` is true."""
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
        counted = finite & ~self._resetting & ~_not_in_episode(info, ended)
        self._return[counted] = self.discount_factor * self._return[counted] + raw_reward[counted]
        if self.training:
            self.statistics.update(self._return[counted])
        scaled = raw_reward / np.sqrt(self.statistics.variance + self.epsilon)
        normal = np.where(finite, scaled.clip(-self.clip, self.clip), raw_reward)
        self._return[ended] = 0
        if self.env.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP:
            self._resetting = ended
        return obs, normal, terminated, truncated, {**info, "raw_reward": raw_reward}

    def episode_state(self) -> dict[str, Any]:
        """Return the discounted returns of the running episodes, and the envs that are being reset."""
        return {"return": self._return.copy(), "resetting": self._resetting.copy()}

    def load_episode_state(self, state: dict[str, Any]) -> None:
        """Restore the state that ``episode_state`` returned."""
        self._return, self._resetting = state["return"].copy(), state["resetting"].copy()


def _reset_rows(options: Info | None, num_envs: int) -> BoolArray:
    """Return the envs to reset. This is read before the reset, because gymnasium removes the mask from the options."""
    mask = None if options is None else options.get("reset_mask")
    return np.ones(num_envs, dtype=bool) if mask is None else np.array(mask)


def _not_in_episode(info: Info, ended: BoolArray) -> BoolArray:
    """Return the envs that were paused or reported a fault, whose step belongs to no episode."""
    found = np.zeros(len(ended), dtype=bool)
    for key in ("paused", "abnormal"):
        flags = np.asarray(info[key]).astype(bool) if key in info else np.zeros_like(found)
        final = info.get("final_info")
        if final is not None:  # at the end of an episode, info belongs to the reset
            flags = np.where(ended, np.asarray(final[key]).astype(bool) if key in final else False, flags)
        found |= flags
    return found


def _make_statistics(space: gym.Space[Any], name: str = "") -> Statistics | None:
    if is_team(space) and isinstance(space, gym.spaces.Dict):
        space = gym.spaces.Dict({key: space[key] for key in (AGENT_STATE, GLOBAL_STATE) if key in space.spaces})
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


def _shapes(statistics: Statistics) -> Any:
    return nested.apply(lambda leaf: leaf.shape, statistics)


def _load(statistics: Statistics, state: dict[str, Any]) -> None:
    if isinstance(statistics, dict):
        for name, below in statistics.items():
            _load(below, state[name])
    else:
        statistics.load_state_dict(state)
