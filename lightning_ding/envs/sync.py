"""Vector envs of separate envs: how they read seeds, and those that are stepped in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
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
    INDICES,
    InvalidAnswerError,
    add_note,
    call_method,
    does_not_fit,
    layout_of,
    name_of,
    observation_check,
    place_of,
    reset_values,
    step_values,
)
from lightning_ding.envs.infos import FINAL_OBS, Columns, InfoBlock, columns_of, frozen, join_infos, part_of

Stack = Callable[[Sequence[Any], NDArray[Any]], NDArray[Any]]
IDLE, STEPPING, RESETTING = 0, 1, 2
"""The states of an env: it does nothing, makes a step, or resets."""


class SettableEnvs(VectorEnv[Any, Any, Any]):
    """A vector env of separate envs, of which methods can be called, and which takes options of resets."""

    copy: bool
    call: Callable[..., tuple[Any, ...]]
    configure: Callable[..., None]
    set_reset_options: Callable[[dict[str, Any] | None], None]


class _SyncVectorEnv(SettableEnvs, SyncVectorEnv):
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
        self._first_id = 0  # number of the first env in infos
        self._position: Any = [0, IDLE]  # the current env, and what it does
        self._memory: Any = None  # arrays in which observations are joined; None for new ones in each step
        single = self.single_observation_space
        self._box = (single.shape or None) if isinstance(single, spaces.Box) else None  # shape of observations to join
        self._has_plain_actions = isinstance(self.action_space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary))
        self._check = observation_check(self.single_observation_space)
        layout = layout_of(self.single_observation_space)
        self._is_joined = layout is not None
        self._has_indices = layout is not None and any(isinstance(leaf, INDICES) for leaf in layout.leaves)
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
        number, does = self._position
        return None if does == IDLE else f"env {number}, {self.env_name}, in {self._place()}"

    @override
    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those where ``options["reset_mask"]`` is true; return observations and info."""
        seeds = seeds_of(seed, self.num_envs)
        options, mask = without_mask(options, self.num_envs)
        self._terminations[mask] = self._truncations[mask] = self._autoreset_envs[mask] = False
        infos = {}
        try:
            for number in np.flatnonzero(mask).tolist():
                self._position[0] = number
                self._env_obs[number], info = self._reset_one(number, seeds[number], options)
                infos[self._first_id + number] = info
        except BaseException as error:
            self._fail(error)
        self._position[1] = IDLE
        return self._batch(), self._join([part_of(infos)] if any(infos.values()) else [])

    @override
    def step(self, actions: Any) -> Any:
        """Step every env; return observations, rewards, ends by termination and by truncation, and the info."""
        if self.autoreset_mode is AutoresetMode.DISABLED and self._autoreset_envs.any():
            return super().step(actions)  # which refuses to step an env that has to be reset
        return self.step_each(iter(actions) if self._has_plain_actions else iterate(self.action_space, actions))

    def step_each(self, actions: Iterable[Any]) -> Any:
        """Step every env with its action; the result is that of :meth:`step`."""
        mode, due, position = self.autoreset_mode, self._autoreset_envs, self._position
        resets, is_late = mode is AutoresetMode.SAME_STEP, mode is AutoresetMode.NEXT_STEP
        rewards, terminations, truncations = self._rewards, self._terminations, self._truncations
        first, infos, finals = self._first_id, {}, {}
        self._count += 1
        try:
            for number, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
                position[0] = number
                if is_late and due[number]:
                    self._env_obs[number], infos[first + number] = self._reset_one(number)
                    rewards[number], terminations[number], truncations[number] = 0.0, False, False
                    continue
                position[1] = STEPPING
                obs, reward, terminated, truncated, info = step_values(env.step(action))
                rewards[number], terminations[number], truncations[number] = reward, terminated, truncated
                if resets and (terminated or truncated):
                    self._check(obs, "step()")
                    finals[first + number] = {FINAL_OBS: deepcopy(obs), "final_info": frozen(info) if info else {}}
                    obs, info = self._reset_one(number)
                if info:
                    infos[first + number] = info.copy()  # envs may share it
                self._env_obs[number] = obs
        except BaseException as error:
            self._fail(error)
        position[1] = IDLE
        self._autoreset_envs = terminations | truncations
        parts = [*([columns_of(finals)] if finals else []), *([part_of(infos)] if infos else [])]
        return self._batch(), rewards.copy(), terminations.copy(), truncations.copy(), self._join(parts)

    def _join(self, parts: list[Columns | InfoBlock]) -> Any:
        return join_infos(parts, self.num_envs) if parts else {}

    def _reset_one(self, number: int, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._position[1] = RESETTING
        self._seeds[number] = self._seeds[number] if seed is None else seed
        if self._reset_options:
            options = {**self._reset_options, **(options or {})}
        answer = reset_values(self.envs[number].reset(seed=seed, options=options))
        self._begun[number] = self._count
        return answer

    def _batch(self) -> Any:
        """Return the observations of all envs in new arrays, or raise an error that names the env that is at fault.

        Observations of another type are only converted once ``_converts`` is set.
        """
        space, items, box = self.single_observation_space, self._env_obs, self._box
        try:
            if not self._is_joined:
                self._observations = concatenate(space, items, self._observations)
                return deepcopy(self._observations)
            new: Any = self._memory
            if new is None:
                if box is None:
                    new = create_empty_array(space, self.num_envs, fn=np.empty)
                else:
                    new = np.empty((self.num_envs, *box), space.dtype)
            if self._has_indices:
                self._check_all()
            if self._converts:
                return _stacked(space, items, new, _convert)
            if box is not None and {len(one) for one in items} == {box[0]}:  # type: ignore[arg-type]
                parts: Any = items
                np.concatenate(parts, out=new.reshape(-1, *box[1:]), casting="safe")
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
            self._position[0] = number
            try:
                self._check(obs, "step()" if self._count > self._begun[number] else "reset()")
            except InvalidAnswerError as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        """Raise the exception of the current env, or one that names the env."""
        from lightning_ding.envs.faults import named_error

        number, place = self._position[0], self._place()
        self._position[1] = IDLE
        named = named_error(error, self.envs[number], number, place)
        if named is error:
            if isinstance(error, Exception):
                seed = "without a seed" if self._seeds[number] is None else f"last seed {self._seeds[number]}"
                add_note(error, f"raised by env {number}, {name_of(self.envs[number])}, in {place}, {seed}")
            raise error
        raise named from None if isinstance(error, InvalidAnswerError) else error

    def _place(self) -> str:
        number, does = self._position
        return place_of(self._count - self._begun[number], does == RESETTING)


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


def seeds_of(seed: Any, num_envs: int) -> list[int | None]:
    """Return a seed for each env, from the seed of the first env, a list of seeds, or None."""
    if seed is None or isinstance(seed, (int, np.integer)):
        return [None if seed is None else int(seed) + env_id for env_id in range(num_envs)]
    seeds = list(seed)
    require(len(seeds) == num_envs, "seed", f"an integer, None or a list of {num_envs} of these", len(seeds))
    return seeds


def without_mask(options: dict[str, Any] | None, num_envs: int) -> tuple[dict[str, Any] | None, NDArray[np.bool_]]:
    """Return the options without ``reset_mask``, None if there are no others, and the mask of the envs to reset."""
    if options is None or "reset_mask" not in options:
        return options, np.ones(num_envs, dtype=bool)
    mask: Any = options["reset_mask"]
    is_mask = isinstance(mask, np.ndarray) and mask.dtype == bool and mask.shape == (num_envs,) and bool(mask.any())
    allowed = f"a boolean array of shape ({num_envs},) with at least one true entry"
    require(is_mask, "options['reset_mask']", allowed, mask)
    return {name: value for name, value in options.items() if name != "reset_mask"} or None, mask


def check_workers(num_workers: int | None, num_envs: int) -> int:
    """Return a number of workers, for None the number of cores that this process may use, at most one for each env.

    Raises:
        ValueError: If the number is not from 1 to ``num_envs``.
    """
    if num_workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(cores, num_envs)
    allowed = f"from 1 to {num_envs}, the number of envs, or None for the number of cores"
    is_number = isinstance(num_workers, int) and not isinstance(num_workers, bool)
    require(is_number and 1 <= num_workers <= num_envs, "num_workers", allowed, num_workers)
    return num_workers
