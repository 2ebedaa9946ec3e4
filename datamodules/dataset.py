"""Data sets of transitions: checked columns in episodes, their spaces and their statistics.

Shapes: N transitions of a data set, E episodes, A dimensions of an action.
"""

from __future__ import annotations

import copy
import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.config import nearest, require
from lightning_ding.datamodules.legal_actions import check_masks, check_range
from lightning_ding.envs.bounds import loses_variation

log = logging.getLogger(__name__)
Columns = dict[str, Any]
D4RL_NAMES = {
    "observations": "obs",
    "actions": "action",
    "rewards": "reward",
    "next_observations": "next_obs",
    "terminals": "terminated",
    "timeouts": "truncated",
}
"""Names of D4RL's data sets, and ours."""
NEEDED = ("obs", "action", "reward", "terminated")
NAMES = (*NEEDED, "truncated", "next_obs", "env_id", "episode_id")
"""Entries that a data set may have."""
OBS = ("obs", "next_obs")
NEW_AXIS_HINT = "; the first axis of every entry is the transition"


@dataclass(frozen=True)
class DatasetStatistics:
    """Moments and ranges of a data set."""

    transitions: int
    """Number of transitions N."""
    episodes: int
    """Number of episodes E, parts of episodes included."""
    obs_mean: Any
    """Mean of the observations, nested arrays of the shapes of one observation."""
    obs_std: Any
    """Standard deviation of the observations, of the same form."""
    reward_mean: float
    """Mean reward of a step."""
    return_mean: float
    """Mean undiscounted return of whole episodes; of all parts if no episode is whole."""
    return_min: float
    """Smallest such return."""
    return_max: float
    """Largest such return."""
    action_low: Any
    """Smallest action in the data, nested arrays of the shapes of one action."""
    action_high: Any
    """Largest action in the data, of the same form."""


class Dataset:
    """Transitions in chronological order, episode after episode.

    Where two consecutive steps do not belong together, a new episode starts: after a step that is ``terminated`` or
    ``truncated``, where ``env_id`` or ``episode_id`` change, and where ``next_obs`` is not the ``obs`` of the next
    row. Without ``next_obs`` it is the ``obs`` of the next row of the episode. The final observation of an episode is
    then unknown: the last step of an episode that did not terminate is left out, and the step before it is truncated
    instead if it was; a terminated step, whose next observation has no value, gets its own observation. The reward of a
    step that is left out still counts in the return of its episode.

    Args:
        data: ``obs``, nested arrays; ``action``; ``reward``, ``terminated`` and ``truncated``, shape (N,);
            ``next_obs``, like ``obs``; and ``env_id`` and ``episode_id``, shape (N,), for rows of several envs in
            turns. All with leading axis N. Observations of double precision stay so if single precision loses their
            variation. ``obs``, ``action``, ``reward``, ``terminated`` and one of ``truncated``,
            ``next_obs`` and ``episode_id`` are needed. The names of D4RL's data sets are known too.
        observation_space: Observation space of the env; None makes one from the data, without bounds.
        action_space: Action space of the env; None makes one from the data: a Box from the smallest to the largest
            action, or the whole numbers from 0, or from a negative smallest one, to the largest one in the data.
        starts_at_zero: Whether discrete actions are counted from 0, as in our buffers, and not as the env counts them.

    Raises:
        ValueError: If an entry is unknown, missing, of a wrong length or not finite, or the data do not fit the spaces.

    Example:
        >>> steps = {"obs": np.zeros((3, 2)), "action": np.array([0, 1, 1]), "reward": np.ones(3)}
        >>> data = Dataset({**steps, "terminated": np.array([False, True, False]), "truncated": np.zeros(3, bool)})
        >>> len(data), data.action_space, data.statistics().return_max
        (2, Discrete(2), 2.0)
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        starts_at_zero: bool = False,
    ) -> None:
        columns = _checked({D4RL_NAMES.get(name, name): value for name, value in data.items()})
        self.columns: Columns
        """``obs``, ``action``, ``reward``, ``next_obs``, ``terminated``, ``truncated`` and ``episode_id``: nested
        arrays with leading axis N."""
        columns["row"] = np.arange(len(columns["reward"]))
        self.columns, self._reward_left_out = _in_episodes(_ordered(columns))
        self._rows = self.columns.pop("row")
        self.source: str | None = None
        """File or id that the data are from, for errors; :func:`load_dataset` sets it."""
        require(len(self) > 0, "dataset", "at least one transition whose next observation is known", 0)
        self.starts_at_zero = starts_at_zero
        self.observation_space = observation_space or _space_of(self.columns["obs"])
        self.action_space = action_space or _action_space_of(self.columns["action"])
        _check_entry(self.observation_space, self.columns["obs"], "obs")
        if action_space is not None:  # the numbers of a space made from the data may differ from those of a mask
            self.check(self.observation_space, action_space)

    def __len__(self) -> int:
        return len(self.columns["reward"])

    def with_rewards(self, scale: float, shift: float) -> Dataset:
        """Return the same transitions, or this data set itself, with the rewards ``(reward + shift) * scale``."""
        if (scale, shift) == (1, 0):
            return self
        changed = copy.copy(self)
        changed.__dict__.pop("checksum", None)
        reward = (self.columns["reward"].astype(np.float64) + shift) * scale
        changed.columns = {**self.columns, "reward": reward.astype(np.float32)}
        changed._reward_left_out = np.where(self._reward_left_out == 0, 0.0, (self._reward_left_out + shift) * scale)
        return changed

    def check(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        """Check that the data fit the spaces of an env, and that no ``action_mask`` excludes an action.

        Raises:
            ValueError: Naming the entry, what the space allows, and what the data have, with the first bad row.
        """
        try:
            _check_entry(observation_space, self.columns["obs"], "obs")
            actions = (self.starts_at_zero, self._rows)
            _check_entry(action_space, self.columns["action"], "action", *actions)
            check_masks(self.columns["obs"], self.columns["action"], action_space, *actions)
        except ValueError as error:
            if self.source is None:
                raise
            raise ValueError(f"{error} (in {self.source})") from error

    def warn_of_lost_variation(self, keeps_double: bool) -> None:
        """Warn if the observations need double precision, and ``keeps_double`` is False."""
        if not keeps_double and any(map(_loses_variation, nested.leaves(self.columns["obs"]))):
            log.warning(
                "observations of the data set vary less than single precision, in which networks see them, counts at "
                "their size: their variation is lost. Set norm_obs to true, which shifts them in double precision, if "
                "the observation space is of float64, or subtract a constant"
            )

    def bounds(self) -> NDArray[np.int64]:
        """Return the first row of each episode, and N, shape (E + 1,)."""
        changes = np.flatnonzero(np.diff(self.columns["episode_id"])) + 1
        return np.concatenate([[0], changes, [len(self)]])

    def returns(self) -> NDArray[np.float64]:
        """Return the undiscounted return of each episode or part of one, shape (E,)."""
        return np.add.reduceat(self.columns["reward"] + self._reward_left_out, self.bounds()[:-1])

    def discounted_returns(self, discount_factor: float, reward: Any = None) -> NDArray[np.float32]:
        """Return the discounted sum of the rewards from each step to the end of its episode, shape (N,).

        An episode that did not terminate continues forever with its mean reward.

        Args:
            discount_factor: gamma, in [0, 1]; with 1, nothing follows an episode.
            reward: Rewards in place of those of the data, shape (N,).
        """
        rewards = np.asarray(self.columns["reward"] if reward is None else reward, np.float64)
        found = np.zeros(len(self))
        for start, end in pairwise(self.bounds().tolist()):
            is_over = bool(self.columns["terminated"][end - 1]) or discount_factor == 1
            value = 0.0 if is_over else rewards[start:end].mean() / (1 - discount_factor)
            for row in range(end - 1, start - 1, -1):
                value = rewards[row] + discount_factor * value
                found[row] = value
        return found.astype(np.float32)

    def trajectories(self) -> Columns:
        """Return the columns of whole episodes, with ``return_to_go`` and ``timestep``, shape (N,).

        The return to go is the sum of the rewards from a step to the end of its episode, and the time step is the
        number of a step in its episode, from 0.

        Raises:
            ValueError: If no episode is whole.
        """
        bounds, whole = self.bounds(), self.whole_episodes()
        require(bool(whole.any()), "dataset", "one with at least one whole episode", f"{len(whole)} parts of episodes")
        lengths = np.diff(bounds)
        reward = self.columns["reward"].astype(np.float64)
        earlier = np.cumsum(reward) - reward  # of all episodes
        at_end = np.repeat(earlier[bounds[:-1]] + self.returns(), lengths)
        columns = dict(self.columns)
        columns["return_to_go"] = (at_end - earlier).astype(np.float32)
        columns["timestep"] = np.arange(len(self)) - np.repeat(bounds[:-1], lengths)
        kept = np.repeat(whole, lengths)
        return columns if kept.all() else {name: nested.index(value, kept) for name, value in columns.items()}

    @cached_property
    def checksum(self) -> int:
        """Checksum of all columns."""
        checksum = len(self)
        for leaf in nested.leaves(self.columns):
            checksum = zlib.crc32(np.ascontiguousarray(leaf).data, checksum)
        return checksum

    def whole_episodes(self) -> NDArray[np.bool_]:
        """Return whether each episode is there up to its end, shape (E,)."""
        last = self.bounds()[1:] - 1
        return np.asarray(self.columns["terminated"][last] | self.columns["truncated"][last])

    def statistics(self) -> DatasetStatistics:
        """Return moments and ranges of the data."""
        returns, whole, obs = self.returns(), self.whole_episodes(), self.columns["obs"]
        counted = returns[whole] if whole.any() else returns
        action = self.columns["action"]
        return DatasetStatistics(
            transitions=len(self),
            episodes=len(returns),
            obs_mean=nested.apply(lambda x: x.mean(0, dtype=np.float64), obs),
            obs_std=nested.apply(lambda x: x.std(0, dtype=np.float64), obs),
            reward_mean=float(self.columns["reward"].mean(dtype=np.float64)),
            return_mean=float(counted.mean()),
            return_min=float(counted.min()),
            return_max=float(counted.max()),
            action_low=nested.apply(lambda x: x.min(0), action),
            action_high=nested.apply(lambda x: x.max(0), action),
        )


def _checked(data: Mapping[str, Any]) -> Columns:
    """Return the entries as arrays of equal lengths, 32-bit floats and booleans."""
    for name in data:
        require(name in NAMES, "dataset", f"entries among {list(NAMES)}", f"{name!r}; {nearest(name, NAMES)}")
    missing = [name for name in NEEDED if name not in data]
    require(not missing, "dataset", f"transitions with {', '.join(NEEDED)}", f"none of {missing}")
    has_ends = any(name in data for name in ("truncated", "next_obs", "episode_id"))
    allowed = "transitions with truncated, next_obs or episode_id, which tell episodes apart"
    require(has_ends, "dataset", allowed, sorted(data))
    columns: Columns = {name: nested.to_array(nested.as_dicts(value), name in OBS) for name, value in data.items()}
    shape = np.shape(columns["reward"])
    require(len(shape) > 0, "dataset's reward", f"of shape (N,), one number for each transition{NEW_AXIS_HINT}", shape)
    size = shape[0]
    for name, leaf in nested.flatten(columns).items():
        numbers = leaf.dtype.kind in "biuf"
        require(numbers, f"dataset's {name}", "numbers", f"{leaf.dtype}")
        got = leaf.shape[0] if leaf.ndim else 1
        require(got == size, f"dataset's {name}", f"{size} long, like reward{NEW_AXIS_HINT}", got)
    for name in {"reward", "terminated", "truncated", "env_id", "episode_id"} & columns.keys():
        shape = columns[name].shape
        require(len(shape) == 1, f"dataset's {name}", f"of shape ({size},)", shape)
    for name, leaf in nested.flatten(columns).items():
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            first = np.flatnonzero(~np.isfinite(leaf).reshape(size, -1).all(1))[0]
            require(False, f"dataset's {name}", "finite", f"NaN or infinite numbers, first in row {first}")
    columns["reward"] = columns["reward"].astype(np.float32)
    for name in {"terminated", "truncated"} & columns.keys():
        other = columns[name][(columns[name] != 0) & (columns[name] != 1)]
        require(not other.size, f"dataset's {name}", "of booleans, or 0 and 1", other[:3].tolist())
        columns[name] = columns[name].astype(bool)
    columns["action"] = nested.apply(_as_long, columns["action"])
    keeps_double = any(map(_loses_variation, nested.leaves(columns["obs"])))
    return columns if keeps_double else {name: nested.to_array(value) for name, value in columns.items()}


def _loses_variation(leaf: NDArray[Any]) -> bool:
    """Return whether observations vary less than single precision counts at their size."""
    return leaf.dtype == np.float64 and bool(loses_variation(leaf.min(0), leaf.max(0)).any())


def _as_long(leaf: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers and booleans as int64, with which tensors can be indexed; others unchanged."""
    return leaf.astype(np.int64, copy=False) if leaf.dtype.kind in "biu" else leaf


def _ordered(columns: Columns) -> Columns:
    """Return the rows of each env, and of each episode in it, one after the other."""
    keys = [columns[name] for name in ("episode_id", "env_id") if name in columns]
    if not keys:
        return columns
    order = np.lexsort(keys)  # stable: the rows of an episode keep their order
    return {name: nested.index(value, order) for name, value in columns.items()}


def _in_episodes(columns: Columns) -> tuple[Columns, NDArray[np.float64]]:
    """Return the columns with ``next_obs``, ``truncated`` and ``episode_id``, without steps that lack the first.

    Returns:
        The columns, and for each of their rows the reward of the step after it that was left out, shape (N,).
    """
    terminated = columns["terminated"]
    truncated = columns.get("truncated", np.zeros_like(terminated))
    last = terminated | truncated
    for name in {"env_id", "episode_id"} & columns.keys():
        last |= np.append(np.diff(columns[name]) != 0, True)
    kept, left_out = np.ones(len(last), dtype=bool), np.zeros(len(last))
    obs, next_obs = columns["obs"], columns.get("next_obs")
    if next_obs is None:
        last[-1] = True
        kept = terminated | ~last
        truncated = truncated | np.append((truncated & ~kept)[1:] & ~last[:-1], False)
        left_out[:-1] = np.where(~kept[1:] & ~last[:-1], columns["reward"][1:], 0.0)
        place = np.where(last, np.arange(len(last)), np.arange(1, len(last) + 1))
        next_obs = nested.index(obs, place)
    else:
        _check_same_form(obs, next_obs)
        last |= ~_follows(obs, next_obs)
    episode_id = np.concatenate([[0], np.cumsum(last)[:-1]])
    found = {name: columns[name] for name in ("obs", "action", "reward", "terminated", "row")}
    found |= {"next_obs": next_obs, "truncated": truncated, "episode_id": episode_id}
    if kept.all():
        return found, left_out
    return {name: nested.index(value, kept) for name, value in found.items()}, left_out[kept]


def _check_same_form(obs: Any, next_obs: Any) -> None:
    forms = [
        {name: leaf.shape[1:] for name, leaf in nested.flatten({"obs": value}).items()} for value in (obs, next_obs)
    ]
    require(forms[0] == forms[1], "dataset's next_obs", f"of the shapes of obs, {forms[0]}", forms[1])


def _follows(obs: Any, next_obs: Any) -> NDArray[np.bool_]:
    """Return whether the next observation of each row is the observation of the next row, shape (N,)."""
    follows: NDArray[np.bool_] | None = None
    for now, then in zip(nested.leaves(obs), nested.leaves(next_obs), strict=True):
        left, right = then[:-1].reshape(len(then) - 1, -1), now[1:].reshape(len(now) - 1, -1)
        same = ((left == right) | ((left != left) & (right != right))).all(1)  # NaN equals NaN here
        follows = same if follows is None else follows & same
    return np.append(np.asarray(follows), False)


# ---------------------------------------------------------------------- spaces


def _space_of(data: Any) -> spaces.Space[Any]:
    """Return a space for the observations, without bounds."""
    if isinstance(data, dict):
        return spaces.Dict({name: _space_of(below) for name, below in data.items()})
    shape, kind = data.shape[1:], data.dtype
    if kind.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, kind.type)
    if not shape:
        return _choices_of(data)
    limits = np.iinfo(kind if kind.kind in "iu" else np.uint8)
    return spaces.Box(limits.min, limits.max, shape, kind.type if kind.kind in "iu" else np.uint8)


def _action_space_of(data: Any) -> spaces.Space[Any]:
    if isinstance(data, dict):
        return spaces.Dict({name: _action_space_of(below) for name, below in data.items()})
    if data.dtype.kind == "f":
        return spaces.Box(data.min(0), data.max(0), dtype=data.dtype.type)
    if data.shape[1:]:
        start = np.minimum(data.min(0), 0)
        return spaces.MultiDiscrete(data.max(0) - start + 1, start=start)
    return _choices_of(data)


def _choices_of(data: NDArray[Any]) -> spaces.Discrete:
    """Return the whole numbers from 0, or from the smallest one in the data if it is negative, to the largest one."""
    start = min(int(data.min()), 0)
    return spaces.Discrete(int(data.max()) - start + 1, start=start)


def _check_entry(
    space: spaces.Space[Any], data: Any, name: str, starts_at_zero: bool = False, rows: NDArray[np.int64] | None = None
) -> None:
    """Raise if nested arrays with leading axis N do not fit a space; with ``rows``, those of actions, also ranges."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces if isinstance(space, spaces.Dict) else {str(i): s for i, s in enumerate(space.spaces)}
        got = sorted(data) if isinstance(data, dict) else type(data).__name__
        require(isinstance(data, dict) and data.keys() == parts.keys(), f"dataset's {name}", f"{sorted(parts)}", got)
        for key, below in parts.items():
            _check_entry(below, data[key], f"{name}/{key}", starts_at_zero, rows)
        return
    got = "a dict" if isinstance(data, dict) else f"{data.dtype} of shape {data.shape[1:]}"
    is_whole = not isinstance(data, dict) and data.dtype.kind in "iub"
    fits = not isinstance(data, dict) and data.shape[1:] == space.shape
    needs_whole = isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))
    kind = "integers" if needs_whole else "numbers"
    require(fits and (is_whole or not needs_whole), f"dataset's {name}", f"{kind} for {space}", got)
    if rows is not None:
        check_range(space, data, name, starts_at_zero, rows)
