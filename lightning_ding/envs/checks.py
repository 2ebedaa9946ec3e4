"""Creating single envs, and checks of them: whether they follow gymnasium's API, and their numbers fit into float32."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv, VectorRewardWrapper, VectorWrapper
from numpy.typing import NDArray

from lightning_ding.envs.action_masks import warn_of_unseen_mask
from lightning_ding.envs.answers import (
    GUIDE,
    BrokenEnvError,
    InvalidAnswerError,
    name_of,
    observation_check,
    reset_values,
    step_values,
)
from lightning_ding.envs.state import unchanged_random_numbers
from lightning_ding.registry import import_modules

SEED = 0
RUNNING_STATISTICS = {
    gym.wrappers.NormalizeObservation: "norm_obs",
    gym.wrappers.NormalizeReward: "norm_reward",
    gym.wrappers.vector.NormalizeObservation: "norm_obs",
    gym.wrappers.vector.NormalizeReward: "norm_reward",
}
"""Wrappers of gymnasium with statistics that evaluations and checkpoints lack, and what to use instead."""

_stepped_by: dict[int, tuple[weakref.ref[Any], weakref.ref[VectorEnv]]] = {}
"""Each env of this process and the vector env that steps it, by the id of the env."""


class EnvMaker:
    """Creates one env when called. It can be pickled, and a fingerprint of the env reads its attributes."""

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
        """Return a new env, after a check of the API if ``check_api`` is set."""
        import_modules(self.modules)
        if self.check_api:
            check_contract(self._make)
        return self._make()

    def _make(self) -> gym.Env[Any, Any]:
        make = functools.partial(gym.make, self.env) if isinstance(self.env, (str, EnvSpec)) else self.env
        env = make(**self.kwargs)
        if not isinstance(env, (gym.Env, VectorEnv)) and hasattr(env, "possible_agents"):
            from lightning_ding.envs.teams.parallel import ParallelTeam

            env = ParallelTeam(functools.partial(_given, env))
        for wrapper in self.wrappers:
            env = wrapper(env)
        if isinstance(env, VectorEnv):
            env.close()
            raise ValueError(f'mode must be "native" with an env_id that creates a vector env, {type(env).__name__}')
        if not isinstance(env, gym.Env):
            raise TypeError(f"env_id must create a gymnasium.Env, got {type(env).__name__}")
        check_statistics(env)
        return env


def _given(env: Any) -> Any:
    return env


def check_statistics(env: Any) -> None:
    """Raise if an env or a vector env has a wrapper of gymnasium that normalises with its own running statistics.

    Raises:
        ValueError: Naming the wrapper and the option to use instead; also for one that changes the reward of a team
            whose agents have rewards of their own.
    """
    while isinstance(env, (gym.Wrapper, VectorWrapper)):
        option = RUNNING_STATISTICS.get(type(env))
        if option is not None:
            env.close()
            raise ValueError(
                f"wrappers must not have {type(env).__name__}, whose statistics evaluations and checkpoints lack; use "
                f"{option}=True of the datamodule, or lightning_ding.envs.normalise without one"
            )
        if isinstance(env, (gym.RewardWrapper, VectorRewardWrapper)):
            check_no_own_rewards(env, f"wrappers must not have {type(env).__name__}, which changes")
        env = env.env


def check_no_own_rewards(env: Any, what: str) -> None:
    """Raise if the agents of a team have rewards of their own, which a wrapper of rewards does not see.

    Args:
        env: An env or a vector env.
        what: Begin of the message: what is wrong, up to the reward of the team.

    Raises:
        ValueError: Naming the option of the env that leaves them out.
    """
    from lightning_ding.utils.teams import AGENT_REWARD, is_team

    space: Any = env.single_observation_space if isinstance(env, VectorEnv) else env.observation_space
    if is_team(space) and AGENT_REWARD in space.spaces:
        env.close()
        raise ValueError(
            f"{what} the reward of the team, and not those of its agents in {AGENT_REWARD!r}; set "
            "env_kwargs={'individual_rewards': False}, or use norm_reward=True of the datamodule, which changes both"
        )


def check_not_shared(envs: Sequence[Any], vector: VectorEnv) -> None:
    """Raise if envs of a vector env are one object, or are stepped by another vector env that is open.

    Args:
        envs: The envs of the vector env; a native vector env alone.
        vector: The vector env that steps them.

    Raises:
        ValueError: Naming the env.
    """
    for place in [place for place, (known, _) in list(_stepped_by.items()) if known() is None]:
        _stepped_by.pop(place, None)  # another thread may do the same
    for number, env in enumerate(envs):
        core = env.unwrapped
        known, owner = _stepped_by.get(id(core), (None, None))
        other = owner() if known is not None and owner is not None and known() is core else None
        if other is not None and not other.closed:
            places = (
                f"for env {number} and an earlier one" if other is vector and len(envs) > 1 else "for two vector envs"
            )
            raise ValueError(
                f"env_id must create a new env at each call, got the same {type(core).__name__} {places}; training and "
                "evaluation need separate envs too: create the env in the function, as in lambda: MyEnv()"
            )
        _stepped_by[id(core)] = (weakref.ref(core), weakref.ref(vector))


def check_contract(make: Callable[[], gym.Env[Any, Any]]) -> None:
    """Create an env, reset it, step it once and close it, and raise if a returned value violates the API.

    The global random number generators are left unchanged. An exception that the env raises is ignored: the run handles
    it as configured.

    Raises:
        BrokenEnvError: If a space is missing, or if ``reset`` or ``step`` returns a value that violates gymnasium's API
            or the spaces of the env.
    """
    with unchanged_random_numbers():
        env = make()
        try:
            for layer in (env.unwrapped, env):
                info = _check_layer(layer)
            warn_of_unseen_mask(env, info)
        except InvalidAnswerError as error:
            raise BrokenEnvError(f"the env {name_of(env)} violates gymnasium's API: {error}") from None
        finally:
            env.close()


def _check_layer(env: Any) -> dict[str, Any]:
    """Check the spaces, a reset and a step of an env, and return the info of the reset."""
    for kind in ("observation_space", "action_space"):
        space = getattr(env, kind, None)
        if not isinstance(space, gym.Space):
            raise InvalidAnswerError(f"{kind} must be a gymnasium.Space, got {space!r}")
    check = observation_check(env.observation_space)
    try:
        answer = env.reset(seed=SEED, options=None)
    except TypeError as error:
        if "seed" in str(error) or "options" in str(error):
            raise InvalidAnswerError(f"reset() must take seed and options, got {error}; {GUIDE}") from error
        return {}
    except BaseException as error:
        _raise_unless_of_env(error)
        return {}
    obs, info = reset_values(answer)
    check(obs, "reset()")
    action_space = copy.deepcopy(env.action_space)  # the space may be shared by several envs
    action_space.seed(SEED)
    try:
        answer = env.step(_legal_action(action_space, obs))
    except BaseException as error:
        _raise_unless_of_env(error)
        return info
    check(step_values(answer)[0], "step()")
    return info


def _raise_unless_of_env(error: BaseException) -> None:
    from lightning_ding.envs.faults import is_of_env

    if not is_of_env(error):
        raise error


def _legal_action(space: Any, obs: Any) -> Any:
    """Return a random action, or the first legal one if the observation has an ``action_mask``."""
    mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
    if mask is None:
        return space.sample()
    if isinstance(space, spaces.Dict):  # a hybrid action, whose mask is that of its type
        return {**space.sample(), "action_type": _legal_action(space["action_type"], obs)}
    is_single = isinstance(space, spaces.Discrete)
    sizes = [space.n] if is_single else np.full(space.n, 2) if isinstance(space, spaces.MultiBinary) else space.nvec
    first = [np.argmax(part) for part in np.split(np.asarray(mask), np.cumsum(sizes)[:-1])]
    legal = np.asarray(first, dtype=space.dtype) + getattr(space, "start", 0)
    return legal[0] if is_single else legal


LARGEST = float(np.finfo(np.float32).max)


def fits_float32(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which numbers are finite as float32, the type in which transitions are stored."""
    fits: NDArray[np.bool_] = np.isfinite(values) if values.dtype.itemsize <= 4 else np.abs(values) <= LARGEST
    return fits


def all_fit_float32(values: NDArray[Any]) -> bool:
    """Return whether all numbers are finite as float32."""
    return bool(np.count_nonzero(fits_float32(values)) == values.size)  # faster than all()


def what_is_wrong(values: NDArray[Any]) -> str:
    """Return a description of numbers of which at least one does not fit into float32."""
    if not np.isfinite(values).all():
        return "not finite"
    return f"too large for float32, in which it is stored (allowed: -{LARGEST:.2e} to {LARGEST:.2e})"


def check_finite(what: str, value: Any) -> None:
    """Raise ``FloatingPointError`` if a number in nested dicts and tuples is not finite or too large for float32."""
    if isinstance(value, (dict, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            check_finite(what, part)
        return
    values = np.asarray(value)
    if values.dtype.kind == "f" and not fits_float32(values).all():
        raise FloatingPointError(f"the {what} is {what_is_wrong(values)}: {value}")
