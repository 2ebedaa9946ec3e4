"""Stepping a vector env in the same way in all three autoreset modes.

Shapes: N envs.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.envs.action_masks import check_legal, mask_starts
from lightning_ding.envs.answers import add_note, does_not_fit
from lightning_ding.envs.bounds import BoundsCheck
from lightning_ding.envs.checks import all_fit_float32, fits_float32, what_is_wrong
from lightning_ding.envs.vector import SEPARATE_ENVS, reset_envs, without_tuples

BoolArray = NDArray[np.bool_]


class Timestep(NamedTuple):
    """The result of one step of N envs."""

    next_obs: Any
    """Observations after the step, at the end of an episode the final ones; nested, leading axis N."""
    reward: NDArray[np.float64]
    """Rewards, shape (N,)."""
    terminated: BoolArray
    """Whether a terminal state was reached, shape (N,)."""
    truncated: BoolArray
    """Whether the episode was truncated, e.g. by a time limit, shape (N,)."""
    info: dict[str, Any]
    """The info of the vector env."""
    valid: BoolArray
    """Whether there is a transition, shape (N,); false if the env was only reset, is paused or reported a fault."""
    abnormal: BoolArray
    """Whether the env reported a fault, which ends its episode as a truncation, shape (N,)."""

    def raw_reward(self) -> NDArray[np.float64]:
        """Return the rewards before wrappers changed them, shape (N,): ``info["raw_reward"]`` where an env gives it."""
        reward = self.reward
        for info in (self.info, self.info.get("final_info")):  # that of the last step, with same-step autoreset
            if isinstance(info, dict) and "raw_reward" in info:
                given: Any = info["raw_reward"]
                reward = np.where(info["_raw_reward"], given, reward) if "_raw_reward" in info else given
        return reward

    def number(self, name: str) -> NDArray[np.float64]:
        """Return a number that the info of the step has, shape (N,); NaN where an env gives none.

        Where an episode ended with same-step autoreset, it is that of the final info.
        """
        return self._read(name)[0]

    def gives(self, name: str) -> BoolArray:
        """Return whether the info of each env has a number of this name, which may be NaN, shape (N,)."""
        return self._read(name)[1]

    def _read(self, name: str) -> tuple[NDArray[np.float64], BoolArray]:
        """Return a number of the infos, or of the final infos, and whether each env has it; both of shape (N,)."""
        (found, has), final = _numbers(self.info, name, len(self.reward)), self.info.get("final_info")
        if isinstance(final, dict):
            own, has_own = _numbers(final, name, len(self.reward))
            ended = self.info.get("_final_info", self.terminated | self.truncated)
            found, has = np.where(ended, own, found), np.where(ended, has_own, has)
        return found, has

    def fault(self, env_id: int) -> str:
        """Return the description of a fault that an env reported in this step."""
        for info in (self.info.get("final_info"), self.info):
            if isinstance(info, dict) and "_fault" in info and info["_fault"][env_id]:
                return str(info["fault"][env_id])
        return "its info is abnormal"


class EnvStepper:
    """Steps a vector env in any autoreset mode, and holds the observations to act on next.

    * SAME_STEP: the final observation is read from the info.
    * NEXT_STEP: the step that only resets an env is marked as not valid.
    * DISABLED: an env is reset at the end of its episode, with its seed in ``next_seed``.

    An env reports a fault by ``info["abnormal"]``. Its step is then not valid, its episode is truncated, and the env is
    reset if it did not end the episode itself.

    Args:
        env: A gymnasium vector env with ``metadata["autoreset_mode"]``.

    Raises:
        ValueError: If the metadata lack the autoreset mode.
    """

    def __init__(self, env: VectorEnv) -> None:
        mode = (env.metadata or {}).get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ValueError(f"env.metadata['autoreset_mode'] must be an AutoresetMode, got {mode!r}")
        env = self.env = without_tuples(env)
        self.mode = mode
        self.obs: Any = None
        """Observations to act on, leading axis N; None before the first reset and after a step that raised."""
        self.next_seed: list[int | None] = [None] * env.num_envs
        self.all_valid = np.ones(env.num_envs, dtype=bool)
        """The array that is ``Timestep.valid`` if all envs made a transition, which can be checked by ``is``."""
        self._none = np.zeros(env.num_envs, dtype=bool)
        self._resetting = np.zeros(env.num_envs, dtype=bool)
        self._paused: BoolArray | None = None
        self._can_pause: bool | None = None
        self._is_lent = not (isinstance(env, SEPARATE_ENVS) and env.copy)
        """Whether the env may return its own memory, which it overwrites later."""
        self._resets_rows = env is not env.unwrapped or isinstance(env, SEPARATE_ENVS)
        """Whether a reset is known to leave the envs alone that are not in its mask; wrappers may change their rows."""
        self._is_float = _has_floats(env.single_observation_space)
        name = getattr(env.unwrapped, "env_name", type(env.unwrapped).__name__)
        self._bounds = BoundsCheck(env.single_observation_space, name)
        self._mask_starts = mask_starts(env.single_observation_space, env.single_action_space)

    def reset(self, seed: list[int | None] | None = None) -> Any:
        """Start a new episode in every env, also in paused ones, and return the first observations."""
        self.obs = None
        if self._paused is not None:
            self.pause(self._none)
        self._resetting[:] = False
        obs = self._reset(seed)
        if self._is_lent:
            obs = _own(obs, self.env.single_observation_space)
        self._check_obs(obs, None)
        if self._mask_starts is not None:
            check_legal(obs, self._mask_starts, self._none)
        self.obs = obs
        return obs

    def step(self, action: Any) -> Timestep:
        """Step every env.

        Args:
            action: Actions, leading axis N. The action of an env that is only reset in this step is ignored.

        Raises:
            ValueError: If a reward or observation is not finite or too large for float32, or an env has no legal
                action; the message names the env.
            RuntimeError: If the envs were not reset before, or not since a step that raised; if an env ends an episode
                while it is paused; or if an env reports a fault without ending its episode and cannot be reset alone.
            Exception: Any exception of an env.
        """
        previous, self.obs = self.obs, None
        if previous is None:
            raise RuntimeError("the envs are not in an episode: call reset() first, also after a step that raised")
        try:
            obs, reward, terminated, truncated, info = self.env.step(_copy(action))  # an env may change its action
        except Exception as error:
            add_note(error, f"raised while the vector env was stepped with the actions {action}")
            raise
        if self._is_lent:
            obs, reward = _own(obs, self.env.single_observation_space), np.array(reward)
            terminated, truncated = np.array(terminated), np.array(truncated)
        ended = terminated | truncated
        next_obs, valid = obs, self.all_valid
        if self.mode == AutoresetMode.NEXT_STEP:
            if np.count_nonzero(self._resetting):
                valid = ~self._resetting
            self._resetting = ended
        elif np.count_nonzero(ended):  # faster than any()
            if self.mode == AutoresetMode.SAME_STEP:
                next_obs = with_final_obs(obs, _final_obs(info), ended)
            else:
                obs = self._reset_rows(obs, ended)
        if self._paused is not None:
            faulty = self._abnormal(info, self._paused, ended)  # an env whose process was replaced has been reset
            _check_paused(self._paused & ~faulty, ended)
            valid = valid & ~self._paused
        timestep = Timestep(next_obs, reward, terminated, truncated, info, valid, self._abnormal(info, valid, ended))
        if timestep.abnormal is not self._none:
            timestep, obs = self._end_abnormal(timestep, obs, previous)
        self._check(timestep, obs, action)
        self.obs = _copy(obs) if obs is timestep.next_obs else obs  # the caller may modify the timestep
        return timestep

    @property
    def can_cut(self) -> bool:
        """Whether :meth:`cut` can reset some envs without the others."""
        return self.mode == AutoresetMode.DISABLED or isinstance(self.env.unwrapped, SEPARATE_ENVS)

    def cut(self, mask: BoolArray) -> None:
        """Stop the episodes of some envs and start new ones, with the seeds in ``next_seed``.

        Args:
            mask: Envs to reset, shape (N,); without envs that are just being reset.
        """
        self.obs = self._reset_rows(self.obs, mask)

    def pause(self, mask: BoolArray) -> bool:
        """Pause the envs where ``mask`` is true, and resume the others.

        Args:
            mask: Envs to pause, shape (N,). They should be at the first observation of an episode, because their steps
                are marked as not valid.

        Returns:
            Whether the envs can be paused. Otherwise nothing has changed. This requires a vector env of separate envs
            (``SEPARATE_ENVS``), all of them ``Pausable``.
        """
        if self._can_pause is None:
            envs: Any = self.env.unwrapped
            self._can_pause = isinstance(envs, SEPARATE_ENVS) and all(envs.call("has_wrapper_attr", "paused"))
        if not self._can_pause:
            return False
        if not np.array_equal(mask, self._none if self._paused is None else self._paused):
            self.env.unwrapped.set_attr("paused", mask.tolist())  # type: ignore[attr-defined]
            self._paused = mask.copy() if mask.any() else None
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the observations to act on, the envs that are being reset or paused, and the next seeds."""
        state = {"obs": self.obs, "resetting": self._resetting, "paused": self._paused, "next_seed": self.next_seed}
        return copy.deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned, after ``envs.load_env_state`` has restored the envs."""
        self.obs, self._resetting, self._paused, self.next_seed = copy.deepcopy(
            [state[name] for name in ("obs", "resetting", "paused", "next_seed")]
        )

    def _abnormal(self, info: dict[str, Any], valid: BoolArray, ended: BoolArray) -> BoolArray:
        """Return which envs reported a fault in this step; the array ``_none`` itself if none did."""
        final = info.get("final_info")
        if "abnormal" not in info and (final is None or "abnormal" not in final):
            return self._none
        abnormal = _flags(info, self._none)
        if self.mode == AutoresetMode.SAME_STEP and final is not None:  # info is that of the reset
            abnormal = np.where(ended, _flags(final, self._none), abnormal)
        abnormal &= valid
        return abnormal if abnormal.any() else self._none

    def _end_abnormal(self, timestep: Timestep, obs: Any, previous: Any) -> tuple[Timestep, Any]:
        """Return the step with faults turned into truncations, and the observations to act on."""
        next_obs, reward, terminated, truncated, info, valid, abnormal = timestep
        next_obs = merge_rows(previous, next_obs, abnormal)
        if self.mode == AutoresetMode.NEXT_STEP:
            obs = next_obs
        lost = abnormal & ~(terminated | truncated)
        if lost.any():
            if not self.can_cut:
                wrong = "reported a fault without ending its episode, and this vector env cannot reset it alone"
                raise RuntimeError(f"env {lost.argmax()} {wrong}: {timestep.fault(int(lost.argmax()))}")
            obs = self._reset_rows(obs, lost)
        ends = (terminated & ~abnormal, truncated | abnormal)
        return Timestep(next_obs, np.where(abnormal, 0.0, reward), *ends, info, valid & ~abnormal, abnormal), obs

    def _reset_rows(self, obs: Any, rows: BoolArray) -> Any:
        seed = [self.next_seed[i] if rows[i] else None for i in range(len(rows))]
        fresh = self._reset(seed, {"reset_mask": rows.copy()})
        if not (self._resets_rows or rows.all()):
            pairs = zip(nested.leaves(fresh), nested.leaves(obs), strict=True)
            self._resets_rows = all(np.array_equal(first[~rows], second[~rows]) for first, second in pairs)
            if not self._resets_rows:
                raise RuntimeError(f"{type(self.env).__name__} must reset the envs of options['reset_mask'], reset all")
        return merge_rows(fresh, obs, rows)

    def _reset(self, seed: list[int | None] | None, options: dict[str, Any] | None = None) -> Any:
        try:
            return reset_envs(self.env, seed, options)
        except Exception as error:
            add_note(error, f"raised while the vector env was reset with the seeds {seed}")
            raise

    def _check(self, timestep: Timestep, obs: Any, action: Any) -> None:
        if not all_fit_float32(timestep.reward):
            _raise("a reward", timestep.reward, fits_float32(timestep.reward), action)
        self._check_obs(timestep.next_obs, action)
        if obs is not timestep.next_obs:  # some are first observations of new episodes
            self._check_obs(obs, None)
        if self._mask_starts is not None:
            check_legal(obs, self._mask_starts, self._resetting)

    def _check_obs(self, obs: Any, action: Any) -> None:
        if self._bounds.left:
            self._bounds.check(obs)
        if not self._is_float:
            return
        for leaf in nested.leaves(obs):
            if leaf.dtype.kind == "f" and not all_fit_float32(leaf):
                _raise("an observation", leaf, fits_float32(leaf).reshape(len(leaf), -1).all(1), action)


def _numbers(info: dict[str, Any], name: str, num_envs: int) -> tuple[NDArray[np.float64], BoolArray]:
    """Return an entry of the info of a vector env as numbers, NaN where there is none, and where there is one, (N,)."""
    given = np.asarray(info.get(name))
    is_number = given.size == num_envs and given.dtype.kind in "biufO"
    found = given.reshape(num_envs) if is_number else np.full(num_envs, np.nan)
    if found.dtype == object:
        found = np.array([one if isinstance(one, (bool, int, float, np.number, np.bool_)) else np.nan for one in found])
    found, mask = found.astype(np.float64), np.asarray(info.get(f"_{name}", np.ones(num_envs, dtype=bool)))
    found = np.where(mask, found, np.nan)
    return found, mask if is_number and given.dtype.kind != "O" else ~np.isnan(found)


def _check_paused(paused: BoolArray, ended: BoolArray) -> None:
    """Raise ``RuntimeError`` if an env that is paused, shape (N,), ended an episode in this step, shape (N,)."""
    if (paused & ended).any():
        env_id = int((paused & ended).argmax())
        raise RuntimeError(f"env {env_id} ended an episode while it was paused: Pausable must be its outermost wrapper")


def _copy(data: Any) -> Any:
    return data.copy() if isinstance(data, np.ndarray) else nested.apply(np.copy, data)


def _own(obs: Any, space: gym.Space[Any]) -> Any:
    """Return a copy of observations with leading axis N, integers in the type of their space.

    Raises:
        ValueError: If the type cannot hold an integer; the message names the env.
    """
    if isinstance(obs, dict):
        parts = getattr(space, "spaces", {})
        return {name: _own(leaf, parts.get(name, space)) for name, leaf in obs.items()}
    dtype = space.dtype
    if not isinstance(obs, np.ndarray) or obs.dtype == dtype or dtype is None or dtype.kind not in "iu":
        return np.copy(obs)
    _check_fit("an observation", obs, dtype)
    return obs.astype(dtype) if obs.dtype.kind in "iu" else obs.copy()


def _check_fit(what: str, values: NDArray[Any], dtype: np.dtype[Any], rows: Any = None) -> None:
    """Raise ``ValueError`` if a type cannot hold a number of N envs, or of the envs ``rows``."""
    lost = does_not_fit(values, dtype)
    if lost.any():
        place = int(np.argwhere(lost)[0][0])
        env_id = place if rows is None else int(rows[place])
        raise ValueError(f"env {env_id} gave {what} that must fit into {dtype}, the type of its space: {values[place]}")


def _flags(info: Any, none: BoolArray) -> BoolArray:
    return np.asarray(info["abnormal"]).astype(bool) if "abnormal" in info else none.copy()


def _raise(what: str, values: NDArray[Any], fits: Any, action: Any) -> None:
    env_id = int(np.flatnonzero(~fits)[0])
    did = "after reset" if action is None else f"after action {nested.index(action, env_id)}"
    wrong = what_is_wrong(values[env_id])
    raise ValueError(f"env {env_id} gave {what} that is {wrong} {did}: {values[env_id]}")


def _has_floats(space: gym.Space[Any]) -> bool:
    if isinstance(space, gym.spaces.Dict):
        return any(map(_has_floats, space.spaces.values()))
    return space.dtype is not None and space.dtype.kind == "f"


def _final_obs(info: dict[str, Any]) -> Any:
    if "final_obs" not in info:
        known = sorted(info)
        raise ValueError(f"info['final_obs'] must hold final observations with same-step autoreset, got only {known}")
    return info["final_obs"]


def with_final_obs(obs: Any, final_obs: Any, ended: BoolArray) -> Any:
    """Return a copy of ``obs`` with the rows of ended episodes replaced by their final observations."""
    rows = np.flatnonzero(ended)
    if isinstance(final_obs, dict):  # arrays of all envs, as the observations
        return merge_rows(final_obs, obs, ended)
    return _put(obs, rows, [final_obs[row] for row in rows])


def _put(obs: Any, rows: NDArray[np.intp], items: list[Any]) -> Any:
    if isinstance(obs, dict):
        return {name: _put(below, rows, [item[name] for item in items]) for name, below in obs.items()}
    return _with_rows(obs, rows, np.stack(items))


def merge_rows(fresh: Any, obs: Any, ended: BoolArray) -> Any:
    """Return a copy of ``obs`` with the rows of ended episodes replaced by those of ``fresh``."""
    if isinstance(obs, dict):
        return {name: merge_rows(fresh[name], below, ended) for name, below in obs.items()}
    return _with_rows(obs, np.flatnonzero(ended), fresh[ended])


def _with_rows(obs: NDArray[Any], rows: NDArray[np.intp], values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype != obs.dtype:
        _check_fit("a first or final observation", values, obs.dtype, rows)
    changed = obs.copy()
    changed[rows] = values
    return changed
