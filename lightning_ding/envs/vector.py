"""Making gymnasium vector environments, with the autoreset mode always said."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any, Literal, cast, get_args

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.config import require
from lightning_ding.envs.contract import BrokenEnvError, check_contract
from lightning_ding.envs.named import EnvLike, Names, Wrappers, find_env, find_wrappers, names_of
from lightning_ding.envs.process import EnvProcessError, ProcessVectorEnv
from lightning_ding.envs.process.arguments import OnEnvError
from lightning_ding.registry import import_modules

SEPARATE_ENVS = (SyncVectorEnv, AsyncVectorEnv, ProcessVectorEnv)
"""Vector envs of envs that can be seeded and reset one by one, and asked by ``call``."""
VectorMode = Literal["sync", "async", "native"]
EnvTimeout = float | tuple[float | None, float | None] | None | Literal["default"]
AutoresetName = Literal["same_step", "next_step", "disabled"]
AUTORESET_MODES: dict[AutoresetName, AutoresetMode] = {
    "same_step": AutoresetMode.SAME_STEP,
    "next_step": AutoresetMode.NEXT_STEP,
    "disabled": AutoresetMode.DISABLED,
}


def make_vector_env(
    env: EnvLike,
    num_envs: int = 1,
    mode: VectorMode = "sync",
    seed: int | np.random.SeedSequence | None = None,
    wrappers: Wrappers = (),
    env_kwargs: Mapping[str, Any] | None = None,
    autoreset: AutoresetName | None = None,
    on_env_error: OnEnvError = "raise",
    env_timeout: EnvTimeout = "default",
    import_names: Names = (),
    check_api: bool = False,
) -> VectorEnv:
    """Return a gymnasium ``VectorEnv`` whose ``metadata["autoreset_mode"]`` is set.

    Args:
        env: A registered gymnasium id, ``module:id``, the dotted path of a class or function, a mapping with
            ``class_path`` and ``init_args``, or a callable that returns an env (with ``mode="native"``, a vector env).
        num_envs: How many envs, >= 1.
        mode: ``"sync"`` steps them in this process, ``"async"`` each in its own, as a ``ProcessVectorEnv``,
            ``"native"`` takes the vector env that the id registers.
        seed: Seeds the envs, each differently, and the action space; the envs are reset once for it. None draws seeds.
        wrappers: Applied in order to each env: callables, dotted paths, or mappings with ``class_path`` and
            ``init_args``; with ``mode="native"``, vector wrappers applied to the vector env.
        env_kwargs: Arguments of the env.
        autoreset: When an env whose episode ended is reset; None means ``"same_step"``. A native env decides for
            itself, so it takes None only.
        on_env_error: With ``mode="async"``, whether what goes wrong in an env is raised, or its episode ends with a
            fault and a new process takes the place of its own.
        env_timeout: With ``mode="async"``, the seconds in which an env must answer, > 0: a pair for a reset and for a
            step, or a number for both; None is no limit, ``"default"`` 120 and 60 s.
        import_names: Modules to import first, also in the processes of the envs, for the envs that they register.
        check_api: Make, reset, step and close one more env first, and raise if it does not keep to gymnasium's API;
            nothing with ``mode="native"``.

    Returns:
        The vector env; the caller closes it. A Tuple in its observations is a dict with the keys "0", "1" and so on.

    Raises:
        ValueError: If there is no such env or wrapper, or an argument is out of its range or has no use in the mode.
        TypeError: If what ``env`` makes is no gymnasium env.
        ImportError: If a module of ``import_names`` cannot be imported.
        BrokenEnvError: With ``check_api``, if the env does not keep to gymnasium's API; a ``ValueError``.
        EnvProcessError: With ``mode="async"``, if an env cannot be made.

    Example:
        >>> with_seed = make_vector_env("CartPole-v1", num_envs=2, seed=0)
        >>> with_seed.reset()[0].shape
        (2, 4)
        >>> with_seed.close()
    """
    require(num_envs >= 1, "num_envs", ">= 1", num_envs)
    require(mode in get_args(VectorMode), "mode", f"one of {get_args(VectorMode)}", mode)
    allowed = (None,) if mode == "native" else (None, *AUTORESET_MODES)
    require(autoreset in allowed, "autoreset", f"one of {allowed} with mode={mode!r}", autoreset)
    if mode != "async":
        require(on_env_error == "raise", "on_env_error", f'"raise" with mode={mode!r}', on_env_error)
        require(env_timeout == "default", "env_timeout", f'"default" with mode={mode!r}', env_timeout)
    modules, kwargs = names_of(import_names), dict(env_kwargs or {})
    import_modules(modules)
    make, wraps = find_env(env), find_wrappers(wrappers)
    if mode == "native":
        vector = _make_native(make, num_envs, wraps, kwargs)
    elif mode == "sync":
        makers = _makers(_Maker(make, wraps, kwargs), num_envs, check_api)
        vector = _SyncVectorEnv(makers, autoreset_mode=AUTORESET_MODES[autoreset or "same_step"])
    else:
        makers = _makers(_Maker(_sendable(make), wraps, kwargs, modules), num_envs, check_api)
        autoreset_mode = AUTORESET_MODES[autoreset or "same_step"]
        with _broken_env_by_its_name():
            vector = ProcessVectorEnv(makers, autoreset_mode, on_env_error=on_env_error, **_timeouts(env_timeout))
    from lightning_ding.envs.tuples import without_tuples

    vector = without_tuples(vector)
    if seed is not None:
        seed_envs(vector, seed)
    return vector


@contextmanager
def _broken_env_by_its_name() -> Iterator[None]:
    """Raise what ``check_contract`` found in a process as it would be raised in this one."""
    try:
        yield
    except EnvProcessError as error:
        beginning = f"{BrokenEnvError.__name__}: "
        found = [line.removeprefix(beginning) for line in error.summaries if line.startswith(beginning)]
        if not found:
            raise
        raise BrokenEnvError(found[0]) from None  # the other traceback is of the check


def differ_in_bounds_only(one: gym.Space[Any], other: gym.Space[Any]) -> bool:
    """Return whether two spaces are the same except for the bounds of floating-point boxes.

    Example:
        >>> differ_in_bounds_only(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-2, 2, (3,)))
        True
    """
    if isinstance(one, gym.spaces.Dict) and isinstance(other, gym.spaces.Dict):
        keys = one.spaces.keys()
        return keys == other.spaces.keys() and all(differ_in_bounds_only(one[key], other[key]) for key in keys)
    if isinstance(one, gym.spaces.Box) and isinstance(other, gym.spaces.Box):
        is_float = one.dtype == other.dtype and np.issubdtype(one.dtype, np.floating)
        return one == other or (is_float and one.shape == other.shape)
    return one == other


def seed_envs(env: VectorEnv, seed: int | np.random.SeedSequence) -> None:
    """Reset the envs once, each with its own seed, and seed the action space from which random actions come."""
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    *env_seeds, action_seed = sequence.generate_state(env.num_envs + 1).tolist()
    reset_envs(env, env_seeds)
    env.action_space.seed(action_seed)


def reset_envs(env: VectorEnv, seed: list[int | None] | None = None, options: dict[str, Any] | None = None) -> Any:
    """Reset a vector env and return the observations.

    Args:
        env: Any vector env.
        seed: One for each env, None where it goes on with its stream. A native env has one stream for all its envs; it
            takes the first seed that is there.
        options: What the env knows.
    """
    seeds: Any = seed
    if seed is not None and not isinstance(env.unwrapped, SEPARATE_ENVS):
        seeds = next((one for one in seed if one is not None), None)
    return env.reset(seed=seeds, options=options)[0]


def _sendable(env: str | Callable[..., Any]) -> EnvSpec | Callable[..., Any]:
    """Return what makes the env in a process that knows neither this one's registry nor its script."""
    if not isinstance(env, str):
        return env
    spec = gym.spec(env)
    if isinstance(spec.entry_point, str) and spec.entry_point.startswith("__main__:"):
        return replace(spec, entry_point=cast(Any, load_env_creator(spec.entry_point)))
    return spec


class _SyncVectorEnv(SyncVectorEnv):
    """Keeps the last observation of an episode from an env that writes its next one into the same memory."""

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        if "final_obs" in env_info:  # added before the env is reset
            env_info = {**env_info, "final_obs": deepcopy(env_info["final_obs"])}
        return super()._add_info(vector_infos, env_info, env_num)


def _makers(make: _Maker, num_envs: int, check_api: bool) -> list[Callable[[], gym.Env[Any, Any]]]:
    first = copy(make)
    first.check_api = check_api
    return [first, *[make] * (num_envs - 1)]


class _Maker:
    """Makes one env; a class, so that it can be sent to another process."""

    def __init__(
        self,
        env: str | EnvSpec | Callable[..., Any],
        wrappers: tuple[Callable[[Any], Any], ...],
        kwargs: dict[str, Any],
        modules: tuple[str, ...] = (),
    ) -> None:
        self.env, self.wrappers, self.kwargs, self.modules = env, wrappers, kwargs, modules
        self.check_api = False

    def __call__(self) -> gym.Env[Any, Any]:
        import_modules(self.modules)
        if self.check_api:
            check_contract(self._make)
        return self._make()

    def _make(self) -> gym.Env[Any, Any]:
        make = functools.partial(gym.make, self.env) if isinstance(self.env, (str, EnvSpec)) else self.env
        env = make(**self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        if not isinstance(env, gym.Env):
            raise TypeError(f"env_id must make a gymnasium.Env, got {type(env).__name__}")
        return env


def _timeouts(env_timeout: EnvTimeout) -> dict[str, Any]:
    if env_timeout == "default":
        return {}
    pair = env_timeout if isinstance(env_timeout, tuple) else (env_timeout, env_timeout)
    are_good = len(pair) == 2 and all(one is None or (isinstance(one, (int, float)) and one > 0) for one in pair)
    require(are_good, "env_timeout", '> 0, None, a pair of such or "default"', env_timeout)
    return dict(zip(("reset_timeout", "step_timeout"), pair, strict=True))


def _make_native(
    env: str | Callable[..., Any], num_envs: int, wrappers: Sequence[Callable[[Any], Any]], kwargs: dict[str, Any]
) -> VectorEnv:
    if isinstance(env, str):
        if gym.spec(env).vector_entry_point is None:
            raise ValueError(f'mode must be "sync" or "async" for {env!r}, which registers no vector env, got "native"')
        vector: Any = gym.make_vec(env, num_envs, vectorization_mode="vector_entry_point", **kwargs)
    else:
        vector = env(**kwargs)
    for wrapper in wrappers:
        vector = wrapper(vector)
    if not isinstance(vector, VectorEnv):
        raise TypeError(f'with mode="native", env_id must make a gymnasium VectorEnv, got {type(vector).__name__}')
    return vector
