"""Vector envs of separate envs: how they join infos and read seeds, and those that are stepped in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.envs.answers import (
    PLAIN,
    InvalidAnswerError,
    add_note,
    call_method,
    does_not_fit,
    has_indices,
    name_of,
    named_error,
    observation_check,
    place_of,
    reset_values,
    step_values,
)

Stack = Callable[[Sequence[Any], NDArray[Any]], NDArray[Any]]
USUAL = {kind: np.dtype(kind) for kind in (bool, int, float)}
"""The dtypes in which gymnasium joins Python's numbers. They are compared first, because they are the most frequent."""
FITTING: set[tuple[Any, np.dtype[Any]]] = set()
"""Types or dtypes of values, and the dtypes of arrays that hold all such values: what was found out so far."""

NUMBERS = set("biufc")
"""Kinds of dtypes of numbers."""


class JoinedInfos(VectorEnv[Any, Any, Any]):
    """Joins the infos of separate envs as gymnasium does, but in arrays that hold the values of all envs unchanged.

    Gymnasium (1.4) takes the shape and the dtype of an array from the first env. If another env has a value that does
    not fit, gymnasium fails, for example for None or a list of legal moves of another length, or changes the value: 2.5
    becomes 2 after an integer, and any other number than 0 becomes True after a bool. Here numbers of different types
    are joined in an array of a type that holds both, and everything else in an array of objects.
    """

    copy: bool
    call: Callable[..., tuple[Any, ...]]
    configure: Callable[..., None]

    @override
    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        for key, value in env_info.items():
            column = vector_infos.get(key)
            is_usual = type(column) is np.ndarray and USUAL.get(type(value)) is column.dtype and column.ndim == 1
            if not (column is None or is_usual or _fits(column, value) or key == "final_obs"):
                vector_infos[key] = _wider(key, column, value, vector_infos[f"_{key}"])
        try:
            return super()._add_info(vector_infos, env_info, env_num)
        except OverflowError:  # an integer of more than 64 bits
            for key, value in env_info.items():
                if type(value) is int:
                    empty = np.zeros(self.num_envs, dtype=bool)
                    mask = vector_infos.get(f"_{key}", empty)
                    vector_infos[key] = _objects(vector_infos.get(key, empty), mask)
            return super()._add_info(vector_infos, env_info, env_num)


class _SyncVectorEnv(JoinedInfos, SyncVectorEnv):
    """A SyncVectorEnv whose steps give the same results in less time, and which checks what its envs return.

    Observations are joined in a new array for each step, instead of in one that is copied then. Final observations are
    copied, because an env may reuse the memory of its observations. Checkpoints contain the name of this class and its
    attributes, apart from the check.

    Args:
        env_fns: Functions that create the envs.
        autoreset_mode: Gymnasium's autoreset mode, which defines when an env is reset after the end of an episode.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env[Any, Any]]], autoreset_mode: AutoresetMode) -> None:
        super().__init__(env_fns, autoreset_mode=autoreset_mode)
        self.env_name = name_of(self.envs[0])
        self._count = 0  # steps of the vector env
        self._begun = [0] * self.num_envs  # their number at the last reset of each env
        self._seeds: list[int | None] = [None] * self.num_envs  # of the last reset of each env that had one
        self._current, self._is_busy, self._resets = 0, False, False  # the env that is stepped or reset
        self._check = observation_check(self.single_observation_space)
        self._has_indices = has_indices(self.single_observation_space)
        self._converts = False  # whether observations may be of another type than their space
        self._reset_options: dict[str, Any] = {}  # of all resets

    def configure(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of each env that sets something."""
        for env in self.envs:
            call_method(env, name, args, kwargs)

    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        """Set options that all following resets of each env get; None for none."""
        self._reset_options = dict(options or {})

    def in_progress(self) -> str | None:
        """Return which env is in which step or reset now, or None. Any thread may call this."""
        return f"env {self._current}, {self.env_name}, in {self._place()}" if self._is_busy else None

    @override
    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those where ``options["reset_mask"]`` is true; return observations and info."""
        seeds = seeds_of(seed, self.num_envs)
        options, mask = without_mask(options, self.num_envs)
        self._terminations[mask] = self._truncations[mask] = self._autoreset_envs[mask] = False
        infos: dict[str, Any] = {}
        self._is_busy = True
        try:
            for number in np.flatnonzero(mask).tolist():
                self._env_obs[number], info = self._reset_one(number, seeds[number], options)
                infos = self._add_info(infos, info, number)
        except BaseException as error:
            self._fail(error)
        self._is_busy = False
        return self._batch(), infos

    @override
    def step(self, actions: Any) -> Any:
        """Step every env; return observations, rewards, ends by termination and by truncation, and the info."""
        mode, due = self.autoreset_mode, self._autoreset_envs
        if mode is AutoresetMode.DISABLED and due.any():
            return super().step(actions)  # which refuses to step an env that has to be reset
        resets, is_late = mode is AutoresetMode.SAME_STEP, mode is AutoresetMode.NEXT_STEP
        rewards, terminations, truncations = self._rewards, self._terminations, self._truncations
        infos: dict[str, Any] = {}
        self._count, self._is_busy = self._count + 1, True
        try:
            for number, (env, action) in enumerate(zip(self.envs, iterate(self.action_space, actions), strict=True)):
                if is_late and due[number]:
                    self._env_obs[number], info = self._reset_one(number)
                    rewards[number], terminations[number], truncations[number] = 0.0, False, False
                    infos = self._add_info(infos, info, number)
                    continue
                self._current = number
                obs, reward, terminated, truncated, info = step_values(env.step(action))
                rewards[number], terminations[number], truncations[number] = reward, terminated, truncated
                if resets and (terminated or truncated):
                    self._check(obs, "step()")
                    infos = self._add_info(infos, {"final_obs": obs, "final_info": info}, number)
                    obs, info = self._reset_one(number)
                if info:
                    infos = self._add_info(infos, info, number)
                self._env_obs[number] = obs
        except BaseException as error:
            self._fail(error)
        self._is_busy = False
        self._autoreset_envs = terminations | truncations
        return self._batch(), rewards.copy(), terminations.copy(), truncations.copy(), infos

    @override
    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        if "final_obs" in env_info:  # this call comes before the reset
            env_info = {**env_info, "final_obs": deepcopy(env_info["final_obs"])}
        return super()._add_info(vector_infos, env_info, env_num)

    def _reset_one(self, number: int, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._current, self._resets = number, True
        self._seeds[number] = self._seeds[number] if seed is None else seed
        if self._reset_options:
            options = {**self._reset_options, **(options or {})}
        answer = reset_values(self.envs[number].reset(seed=seed, options=options))
        self._begun[number], self._resets = self._count, False
        return answer

    def _batch(self) -> Any:
        """Return the observations of all envs in new arrays, or raise an error that names the env that is at fault.

        Observations of another type are only converted once ``_converts`` is set.
        """
        space, items = self.single_observation_space, self._env_obs
        try:
            if not _is_joined(space):
                self._observations = concatenate(space, items, self._observations)
                return deepcopy(self._observations)
            new: Any = create_empty_array(space, self.num_envs, fn=np.empty)
            if self._has_indices:
                self._check_all()
            if self._converts:
                return _stacked(space, items, new, _convert)
            if isinstance(space, spaces.Box) and space.shape and {len(one) for one in items} == {space.shape[0]}:  # type: ignore[arg-type]
                parts: Any = items
                np.concatenate(parts, out=new.reshape(-1, *space.shape[1:]), casting="safe")
                return new
            return _stacked(space, items, new, _stack)
        except (KeyError, IndexError, TypeError, ValueError):
            self._check_all()
            if self._converts:
                raise
            self._converts = True
            return self._batch()

    def _check_all(self) -> None:
        for number, obs in enumerate(self._env_obs):
            self._current = number
            try:
                self._check(obs, "step()" if self._count > self._begun[number] else "reset()")
            except InvalidAnswerError as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        """Raise the exception of the current env, or one that names the env."""
        number, place = self._current, self._place()
        self._is_busy = self._resets = False
        named = named_error(error, self.envs[number], number, place)
        if named is error:
            if isinstance(error, Exception):
                seed = "without a seed" if self._seeds[number] is None else f"last seed {self._seeds[number]}"
                add_note(error, f"raised by env {number}, {name_of(self.envs[number])}, in {place}, {seed}")
            raise error
        raise named from None if isinstance(error, InvalidAnswerError) else error

    def _place(self) -> str:
        return place_of(self._count - self._begun[self._current], self._resets)


def _stacked(space: spaces.Space[Any], items: Sequence[Any], out: Any, stack: Stack) -> Any:
    """Return ``out`` with elements of a space as its rows, as gymnasium's ``concatenate``; ``stack`` fills a leaf."""
    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
        return {key: _stacked(below, [item[key] for item in items], out[key], stack) for key, below in parts}
    if isinstance(space, spaces.Tuple):
        places = enumerate(space.spaces)
        return tuple(_stacked(below, [item[i] for item in items], out[i], stack) for i, below in places)
    return stack(items, out)


def _stack(items: Sequence[Any], out: NDArray[Any]) -> NDArray[Any]:
    """Stack arrays whose types the one of ``out`` includes; ``TypeError`` for others."""
    return np.stack(items, out=out, casting="safe")


def _convert(items: Sequence[Any], out: NDArray[Any]) -> NDArray[Any]:
    """Stack arrays of any type of the same kind; ``ValueError`` if the type of ``out`` cannot hold a number."""
    given = np.stack(items)
    if given.shape != out.shape or does_not_fit(given, out.dtype).any():
        raise ValueError(f"observations must fit into {out.dtype} and have the shape {out.shape}, got {given}")
    np.copyto(out, given, casting="same_kind")
    return out


def _is_joined(space: spaces.Space[Any]) -> bool:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return all(map(_is_joined, space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces))
    return isinstance(space, PLAIN)


def _fits(column: Any, value: Any) -> bool:
    """Return whether a value can be written into the values of the other envs without a change; called at each step."""
    if type(column) is dict:
        return type(value) is dict
    is_array = type(value) is np.ndarray
    if ((value.dtype if is_array else type(value)), column.dtype) not in FITTING:
        return column.dtype == object and column.ndim == 1 and not isinstance(value, dict)
    return bool(column.shape[1:] == value.shape) if is_array else column.ndim == 1


def _wider(key: str, column: Any, value: Any, mask: Any) -> Any:
    """Return the values of the other envs in a form that also holds a value.

    Args:
        key: Name of the value, for an error.
        column: Values of the other envs: an array whose leading axis has the number of envs, or a dict.
        value: The value.
        mask: Which envs have a value.

    Raises:
        TypeError: If one env has a dict, and another one has something else.
    """
    if isinstance(column, dict) or isinstance(value, dict):
        raise TypeError(f"the info {key!r} must be a dict in all envs or in none, got {value!r}")
    is_number = isinstance(value, (bool, int, float, np.number))
    if not (is_number or isinstance(value, np.ndarray)) or column.shape[1:] != np.shape(value):
        return _objects(column, mask)
    kind = np.dtype(int) if type(value) is int else np.asarray(value).dtype  # also for an integer of more bits
    if not {kind.kind, column.dtype.kind} <= NUMBERS:
        return _objects(column, mask)
    if not np.can_cast(kind, column.dtype):
        return column.astype(np.result_type(kind, column.dtype))
    FITTING.add((kind if isinstance(value, np.ndarray) else type(value), column.dtype))
    return column


def _objects(column: Any, mask: Any) -> Any:
    """Return an array of objects with the values of the envs that have one, and None for the others."""
    objects = np.full(len(column), None, dtype=object)
    for env_num in np.flatnonzero(mask):
        objects[env_num] = column[env_num]
    return objects


def seeds_of(seed: Any, num_envs: int) -> list[int | None]:
    """Return a seed for each env, from the seed of the first env, a list of seeds, or None."""
    if seed is None or isinstance(seed, (int, np.integer)):
        return [None if seed is None else int(seed) + env_id for env_id in range(num_envs)]
    seeds = list(seed)
    require(len(seeds) == num_envs, "seed", f"an integer, None or a list of {num_envs} of these", len(seeds))
    return seeds


def without_mask(options: dict[str, Any] | None, num_envs: int) -> tuple[dict[str, Any] | None, NDArray[np.bool_]]:
    """Return the options without ``reset_mask``, and the mask of the envs to reset."""
    if options is None or "reset_mask" not in options:
        return options, np.ones(num_envs, dtype=bool)
    mask: Any = options["reset_mask"]
    is_mask = isinstance(mask, np.ndarray) and mask.dtype == bool and mask.shape == (num_envs,) and bool(mask.any())
    allowed = f"a boolean array of shape ({num_envs},) with at least one true entry"
    require(is_mask, "options['reset_mask']", allowed, mask)
    return {name: value for name, value in options.items() if name != "reset_mask"}, mask
