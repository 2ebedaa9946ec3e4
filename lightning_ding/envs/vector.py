"""Creating gymnasium vector envs whose autoreset mode is always known."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.config import require
from lightning_ding.envs.action_masks import check_mask_space
from lightning_ding.envs.checks import EnvMaker, check_not_shared, check_statistics
from lightning_ding.envs.named import EnvLike, Names, Wrappers, find_env, find_wrappers, names_of
from lightning_ding.envs.state.origins import layers_of, note_origins
from lightning_ding.envs.sync import SettableEnvs, _SyncVectorEnv, check_workers
from lightning_ding.registry import import_modules

if TYPE_CHECKING:
    from lightning_ding.envs.process.errors import OnEnvError

SEPARATE_ENVS = (SyncVectorEnv, AsyncVectorEnv, SettableEnvs)
"""Vector envs of separate envs, which can be seeded and reset one by one and have the method ``call``."""
VectorMode = Literal["sync", "async", "native", "tensor"]
"""The modes of every ``mode`` option: the keys of ``MODES``."""
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
    num_workers: int | None = None,
) -> VectorEnv:
    """Return a gymnasium ``VectorEnv`` whose ``metadata["autoreset_mode"]`` is set.

    Args:
        env: A registered gymnasium id, ``module:id``, the dotted path of a class or function, a mapping with
            ``class_path`` and ``init_args``, or a callable that returns an env (with ``mode="native"``, a vector env of
            ``num_envs`` envs; it gets the number if it has an argument of that name).
        num_envs: Number of envs, >= 1.
        mode: ``"sync"`` steps the envs in this process, ``"async"`` in ``num_workers`` processes
            (``ProcessVectorEnv``), ``"native"`` uses the vector env that is registered for the id or returned by the
            callable, ``"tensor"`` a batch of envs of tensors, see :mod:`~lightning_ding.envs.tensor.reader`; it has
            arrays here.
        seed: Seed of the envs and of the action space. With a seed, the envs are reset once, each with its own seed.
            None draws random seeds.
        wrappers: Wrappers of each env, in order: callables, short names, short names with arguments, dotted paths, or
            mappings with ``class_path`` and ``init_args``. With ``mode="native"``, vector wrappers of the vector env;
            none with ``mode="tensor"``.
        env_kwargs: Keyword arguments of the env.
        autoreset: Autoreset mode, which defines when an env is reset after the end of an episode; None means
            ``"same_step"``. With ``mode="native"`` and ``"tensor"`` only None is allowed.
        on_env_error: With ``mode="async"``, ``"raise"`` raises the failure of an env, ``"restart"`` ends its episode
            with a fault and replaces its process.
        env_timeout: With ``mode="async"``, time limits in seconds, > 0: a pair for a reset and for a step, or a number
            for both. None means no limit, ``"default"`` 120 and 60 seconds.
        import_names: Modules to import first, also in env processes, for example to register envs.
        check_api: Create, reset, step and close an additional env first, and raise if it violates gymnasium's API.
            Without effect with ``mode="native"`` and ``"tensor"``.
        num_workers: With ``mode="async"``, the number of processes, from 1 to ``num_envs``, which step their envs one
            after another; None means one for each core that this process may use.

    Returns:
        The vector env, which the caller closes. Tuples in its observations are converted to dicts with the keys "0",
        "1" and so on.

    Raises:
        ValueError: If there is no such env or wrapper, an argument is out of its range or not allowed in this mode, the
            same env is created twice, a wrapper has running statistics, or a mask of actions has the wrong size.
        TypeError: If ``env`` does not create a gymnasium env, or does not accept ``env_kwargs``.
        ImportError: If a module in ``import_names`` cannot be imported.
        BrokenEnvError: With ``check_api``, if the env violates gymnasium's API; a ``ValueError``.
        EnvProcessError: With ``mode="async"``, if an env raises while it is created, or its process dies or hangs.

    Example:
        >>> with_seed = make_vector_env("CartPole-v1", num_envs=2, seed=0)
        >>> with_seed.reset()[0].shape
        (2, 4)
        >>> with_seed.close()
    """
    require(num_envs >= 1, "num_envs", ">= 1", num_envs)
    kind = find_mode(mode, env_timeout, num_workers, num_envs)
    allowed = (None, *AUTORESET_MODES) if kind.has_separate_envs else (None,)
    require(autoreset in allowed, "autoreset", f"one of {allowed} with mode={mode!r}", autoreset)
    if not kind.has_processes:
        require(on_env_error == "raise", "on_env_error", f'"raise" with mode={mode!r}', on_env_error)
    modules = names_of(import_names)
    import_modules(modules)
    request = Request(
        find_env(env),
        num_envs,
        find_wrappers(wrappers),
        dict(env_kwargs or {}),
        modules,
        check_api,
        AUTORESET_MODES[autoreset or "same_step"],
        {"on_env_error": on_env_error, "num_workers": num_workers, **_timeouts(env_timeout)},
    )
    vector = kind.make(request)
    try:
        check_statistics(vector)
        check_not_shared(getattr(vector, "envs", () if kind.has_processes else (vector,)), vector)
        check_mask_space(vector.single_observation_space, vector.single_action_space)
    except ValueError:
        vector.close()
        raise
    if not kind.has_processes:  # which remember it themselves
        note_origins(layers_of(vector))
    vector = without_tuples(vector)
    if seed is not None:
        seed_envs(vector, seed)
    return vector


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
    """Reset each env once with its own seed, and seed the action space."""
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    *env_seeds, action_seed = sequence.generate_state(env.num_envs + 1).tolist()
    reset_envs(env, env_seeds)
    env.action_space.seed(action_seed)


def reset_envs(env: VectorEnv, seed: list[int | None] | None = None, options: dict[str, Any] | None = None) -> Any:
    """Reset a vector env and return the observations.

    Args:
        env: Any vector env.
        seed: A seed for each env; None continues the random stream of the env. A native env has one random stream for
            all envs, and gets the first seed that is not None.
        options: Options of the vector env.
    """
    seeds: Any = seed
    if seed is not None and not isinstance(env.unwrapped, SEPARATE_ENVS):
        seeds = next((one for one in seed if one is not None), None)
    return env.reset(seed=seeds, options=options)[0]


def without_tuples(env: VectorEnv) -> VectorEnv:
    """Return a vector env whose observations contain no tuples: the given one, or a wrapper of it."""
    if not _has_tuple(env.single_observation_space):
        return env
    from lightning_ding.envs.tuples import TuplesAsDicts  # imports torch, which env processes do not need

    return TuplesAsDicts(env)


def _has_tuple(space: gym.spaces.Space[Any]) -> bool:
    if isinstance(space, gym.spaces.Dict):
        return any(map(_has_tuple, space.spaces.values()))
    return isinstance(space, gym.spaces.Tuple)


class Request(NamedTuple):
    """The envs that a mode makes, from checked arguments of :func:`make_vector_env`."""

    env: str | Callable[..., Any]
    num_envs: int
    wrappers: tuple[Callable[[Any], Any], ...]
    kwargs: dict[str, Any]
    modules: tuple[str, ...]
    check_api: bool
    autoreset_mode: AutoresetMode
    processes: dict[str, Any]
    """``on_env_error``, ``num_workers`` and time limits, for env processes."""

    def makers(self, make: EnvMaker) -> list[Callable[[], gym.Env[Any, Any]]]:
        """Return a function for each env that creates it; the first one checks the env before, with ``check_api``."""
        first = copy(make)
        first.check_api = self.check_api
        return [first, *[make] * (self.num_envs - 1)]


def _make_sync(request: Request) -> VectorEnv:
    makers = request.makers(EnvMaker(request.env, request.wrappers, request.kwargs))
    return _SyncVectorEnv(makers, autoreset_mode=request.autoreset_mode)


def _make_async(request: Request) -> VectorEnv:
    from lightning_ding.envs.process import EnvProcessError, ProcessVectorEnv

    env: Any = request.env
    if isinstance(env, str):  # an id becomes a spec, which works without this process's registry and script
        env = gym.spec(env)
        if isinstance(env.entry_point, str) and env.entry_point.startswith("__main__:"):
            env = replace(env, entry_point=load_env_creator(env.entry_point))
    makers = request.makers(EnvMaker(env, request.wrappers, request.kwargs, request.modules))
    try:
        return ProcessVectorEnv(makers, request.autoreset_mode, **request.processes)
    except EnvProcessError as error:
        if error.refusal is None:
            raise
        raise error.refusal from None  # as without processes: the remote traceback only shows the check


def _timeouts(env_timeout: EnvTimeout) -> dict[str, Any]:
    if env_timeout == "default":
        return {}
    pair = env_timeout if isinstance(env_timeout, tuple) else (env_timeout, env_timeout)
    are_good = len(pair) == 2 and all(one is None or (isinstance(one, (int, float)) and one > 0) for one in pair)
    require(are_good, "env_timeout", '> 0, None, a pair of these, or "default"', env_timeout)
    return dict(zip(("reset_timeout", "step_timeout"), pair, strict=True))


def _make_native(request: Request) -> VectorEnv:
    env = request.env
    if isinstance(env, str):
        allowed = f"one of {SEPARATE_MODES} for {env!r}, which registers no vector env"
        require(gym.spec(env).vector_entry_point is not None, "mode", allowed, "native")
        vector: Any = gym.make_vec(env, request.num_envs, vectorization_mode="vector_entry_point", **request.kwargs)
    else:
        is_given = isinstance(env, functools.partial) and "num_envs" in env.keywords
        takes_number = not is_given and "num_envs" in inspect.signature(env).parameters
        vector = env(**({"num_envs": request.num_envs} if takes_number else {}) | request.kwargs)
    for wrapper in request.wrappers:
        vector = wrapper(vector)
    if not isinstance(vector, VectorEnv):
        raise TypeError(f'with mode="native", env_id must create a gymnasium VectorEnv, got {type(vector).__name__}')
    if vector.num_envs != request.num_envs:
        vector.close()
        allowed = f"{vector.num_envs}, for training and evaluation, because env_id creates that many envs"
        require(False, "num_envs", allowed, request.num_envs)
    return vector


def _make_tensor(request: Request) -> VectorEnv:
    from lightning_ding.envs.tensor.make import make_tensor_envs

    return make_tensor_envs(request.env, request.num_envs, request.wrappers, request.kwargs)


@runtime_checkable
class SaysProgress(Protocol):
    """A vector env that can say what it does now."""

    def in_progress(self) -> str | None:
        """Return which env is in which step or reset now, or None. Any thread may call this."""
        ...


class Mode(NamedTuple):
    """One kind of vector env, and what it can do."""

    make: Callable[[Request], VectorEnv]
    has_separate_envs: bool = True
    """Whether it steps separate envs, with wrappers around each of them and any autoreset mode."""
    has_processes: bool = False
    """Whether the envs are in processes, which are restarted after a failure and have time limits."""


MODES: dict[VectorMode, Mode] = {
    "sync": Mode(_make_sync),
    "async": Mode(_make_async, has_processes=True),
    "native": Mode(_make_native, has_separate_envs=False),
    "tensor": Mode(_make_tensor, has_separate_envs=False),
}
"""The kinds of vector envs. A new one is added here and to ``VectorMode``."""
SEPARATE_MODES: tuple[VectorMode, ...] = tuple(name for name, mode in MODES.items() if mode.has_separate_envs)
"""The modes with separate envs."""


def find_mode(
    mode: VectorMode, env_timeout: EnvTimeout, num_workers: int | None, num_envs: int, overlap: bool = False
) -> Mode:
    """Return a mode of ``MODES``; raise if there is no such mode, or options of processes do not suit it."""
    require(mode in tuple(MODES), "mode", f"one of {tuple(MODES)}", mode)
    has_processes = MODES[mode].has_processes
    require(has_processes or env_timeout == "default", "env_timeout", f'"default" with mode={mode!r}', env_timeout)
    require(has_processes or num_workers is None, "num_workers", f"None with mode={mode!r}", num_workers)
    allowed = f'False with mode={mode!r}: envs can step while the policy learns only with mode="async"'
    require(has_processes or not overlap, "overlap", allowed, overlap)
    check_workers(num_workers, num_envs)
    return MODES[mode]
