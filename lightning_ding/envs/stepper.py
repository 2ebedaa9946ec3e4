"""Stepping a vector env so that the three autoreset modes look the same.

Shapes: N envs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.envs.vector import reset_envs

BoolArray = NDArray[np.bool_]


class Timestep(NamedTuple):
    """What one step of N envs gave."""

    next_obs: Any
    """Observations after the step, the true final ones at an episode's end; nested, leading axis N."""
    reward: NDArray[np.float64]
    """Shape (N,)."""
    terminated: BoolArray
    """Whether a terminal state was reached, shape (N,)."""
    truncated: BoolArray
    """Whether the episode was cut, e.g. by a time limit, shape (N,)."""
    info: dict[str, Any]
    """What the vector env said beside it."""
    valid: BoolArray
    """False where the env was only being reset, so that there is no transition, shape (N,)."""


class EnvStepper:
    """Steps a vector env in any autoreset mode and always knows the observations to act on next.

    * SAME_STEP: the final observation is taken out of the info.
    * NEXT_STEP: the step that only resets an env is marked as not valid.
    * DISABLED: an env whose episode ended is reset at once, with the seed that ``next_seed`` holds for it.

    Args:
        env: A gymnasium vector env whose metadata say the autoreset mode.

    Raises:
        ValueError: If the metadata do not say it.
    """

    def __init__(self, env: VectorEnv) -> None:
        mode = (env.metadata or {}).get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ValueError(f"env.metadata['autoreset_mode'] must be an AutoresetMode, got {mode!r}")
        self.env = env
        self.mode = mode
        self.obs: Any = None
        self.next_seed: list[int | None] = [None] * env.num_envs
        self._all = np.ones(env.num_envs, dtype=bool)
        self._resetting = np.zeros(env.num_envs, dtype=bool)
        self._is_float = any(leaf.dtype.kind == "f" for leaf in _space_leaves(env.single_observation_space))

    def reset(self, seed: list[int | None] | None = None) -> Any:
        """Start a new episode in every env and return the first observations."""
        self._resetting[:] = False
        self.obs = reset_envs(self.env, seed)
        self._check_obs(self.obs, None)
        return self.obs

    def step(self, action: Any) -> Timestep:
        """Step every env.

        Args:
            action: Leading axis N. Where an env is only being reset its action is ignored.

        Raises:
            ValueError: If a reward or an observation is not finite; the message names the env.
        """
        obs, reward, terminated, truncated, info = self.env.step(action)
        obs = _own(obs, self.obs)
        ended = terminated | truncated
        next_obs, valid = obs, self._all
        if self.mode == AutoresetMode.NEXT_STEP:
            if self._resetting.any():
                valid = ~self._resetting
            self._resetting = ended
        elif ended.any():
            if self.mode == AutoresetMode.SAME_STEP:
                next_obs = _with_final(obs, info["final_obs"], ended)
            else:
                obs = self._reset_ended(obs, ended)
        finite = np.isfinite(reward)
        if not finite.all():
            _raise("a reward", reward, finite, action)
        self._check_obs(next_obs, action)
        if obs is not next_obs:  # some of them are the first ones of new episodes
            self._check_obs(obs, None)
        self.obs = obs
        return Timestep(next_obs, reward, terminated, truncated, info, valid)

    def _reset_ended(self, obs: Any, ended: BoolArray) -> Any:
        seed = [self.next_seed[i] if ended[i] else None for i in range(len(ended))]
        fresh = reset_envs(self.env, seed, {"reset_mask": ended.copy()})
        return _merge(fresh, obs, ended)

    def _check_obs(self, obs: Any, action: Any) -> None:
        if self._is_float:
            for leaf in nested.leaves(obs):
                if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                    _raise("an observation", leaf, np.isfinite(leaf).reshape(len(leaf), -1).all(1), action)


def _own(obs: Any, previous: Any) -> Any:
    """Return ``obs``, copied if the env writes all its observations into the same memory."""
    if isinstance(obs, dict):
        return {name: _own(below, previous[name]) for name, below in obs.items()}
    return obs.copy() if np.may_share_memory(obs, previous) else obs


def _raise(what: str, values: NDArray[Any], finite: BoolArray, action: Any) -> None:
    env_id = int(np.flatnonzero(~finite)[0])
    did = "after reset" if action is None else f"after action {nested.index(action, env_id)}"
    raise ValueError(f"env {env_id} gave {what} that is not finite {did}: {values[env_id]}")


def _space_leaves(space: Any) -> list[Any]:
    below = getattr(space, "spaces", None)
    if below is None:
        return [space]
    return [leaf for part in (below.values() if hasattr(below, "values") else below) for leaf in _space_leaves(part)]


def _with_final(obs: Any, final_obs: Any, ended: BoolArray) -> Any:
    """Return a copy of ``obs`` with the rows of ended episodes replaced by their final observations."""
    rows = np.flatnonzero(ended)
    return _put(obs, rows, [final_obs[row] for row in rows])


def _put(obs: Any, rows: NDArray[np.intp], items: list[Any]) -> Any:
    if isinstance(obs, dict):
        return {name: _put(below, rows, [item[name] for item in items]) for name, below in obs.items()}
    changed = obs.copy()
    changed[rows] = np.stack(items)
    return changed


def _merge(fresh: Any, obs: Any, ended: BoolArray) -> Any:
    if isinstance(obs, dict):
        return {name: _merge(fresh[name], below, ended) for name, below in obs.items()}
    changed = obs.copy()
    changed[ended] = fresh[ended]
    return changed
