"""Checks of envs: whether they follow gymnasium's API, and whether their numbers fit into float32."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.envs.process.shared_memory import layout_of

GUIDE = "see https://gymnasium.farama.org/introduction/migration_guide/"
SEED = 0


class BrokenEnvError(ValueError):
    """An env violates gymnasium's API; the message names the env, the method and the returned value."""


def check_contract(make: Callable[[], gym.Env[Any, Any]]) -> None:
    """Create an env, reset it, step it once and close it, and raise if a returned value violates the API.

    The global random number generators are left unchanged. An exception that the env raises is ignored: the run handles
    it as configured.

    Raises:
        BrokenEnvError: If a space is missing, or if ``reset`` or ``step`` returns a value that violates gymnasium's API
            or the spaces of the env.
    """
    with _same_random_numbers():
        env = make()
        try:
            for layer in (env.unwrapped, env):
                _check_layer(layer, _name_of(env))
        finally:
            env.close()


def _check_layer(env: Any, name: str) -> None:
    for kind in ("observation_space", "action_space"):
        space = getattr(env, kind, None)
        _require(isinstance(space, gym.Space), name, f"{kind} must be a gymnasium.Space, got {space!r}")
    try:
        answer = env.reset(seed=SEED)
    except TypeError as error:
        _require("seed" not in str(error), name, f"reset() must take seed and options, got {error}; {GUIDE}")
        return
    except Exception:
        return
    good = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)
    _require(good, name, f"reset() must return (observation, info), got {_describe(answer)}; {GUIDE}")
    _check_observation(env, answer[0], "reset()", name)
    action_space = copy.deepcopy(env.action_space)  # the space may be shared by several envs
    action_space.seed(SEED)
    try:
        answer = env.step(_legal_action(action_space, answer[0]))
    except Exception:
        return
    _check_step(env, answer, name)


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


def _check_step(env: Any, answer: Any, name: str) -> None:
    wanted = "step() must return (observation, reward, terminated, truncated, info)"
    good = isinstance(answer, tuple) and len(answer) == 5
    old = "; a single `done` is the old API" if isinstance(answer, tuple) and len(answer) == 4 else ""
    _require(good, name, f"{wanted}, got {_describe(answer)}{old}; {GUIDE}")
    obs, reward, terminated, truncated, info = answer
    _check_observation(env, obs, "step()", name)
    _require(_is_number(reward), name, f"the reward of step() must be a number, got {_describe(reward)}")
    for what, value in (("terminated", terminated), ("truncated", truncated)):
        is_flag = isinstance(value, (bool, np.bool_, int, np.integer)) or getattr(value, "shape", None) == ()
        _require(is_flag, name, f"{what} of step() must be a bool, got {_describe(value)}")
    _require(isinstance(info, dict), name, f"the info of step() must be a dict, got {_describe(info)}")


def _check_observation(env: Any, obs: Any, method: str, name: str) -> None:
    """Raise if an observation does not fit into an array of the space; bounds are not checked."""
    layout = layout_of(env.observation_space)
    if layout is None:  # elements without a fixed size
        return
    try:
        leaves = layout.split(obs)
    except (KeyError, IndexError, TypeError) as error:
        message = f"the observation of {method} must be in {env.observation_space}, got {_describe(obs)}"
        raise BrokenEnvError(f"{_beginning(name)}: {message}") from error
    for leaf, space in zip(leaves, layout.leaves, strict=True):
        try:
            array = np.asarray(leaf)
        except ValueError:  # lists of different lengths
            array = np.empty((), dtype=object)
        fits = array.shape == (space.shape or ()) and np.can_cast(array.dtype, space.dtype, "same_kind")
        message = f"the observation of {method} must have shape {space.shape} and dtype {space.dtype}"
        _require(fits, name, f"{message} for the space {space}, got {_describe(leaf)}")


def _is_number(value: Any) -> bool:
    try:
        return np.ndim(value) == 0 and float(value) is not None
    except (TypeError, ValueError):
        return False


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"shape {tuple(value.shape)} and dtype {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _name_of(env: gym.Env[Any, Any]) -> str:
    name = type(env.unwrapped).__name__
    return f"{name} ({env.spec.id})" if env.spec is not None else name


def _beginning(name: str) -> str:
    return f"the env {name} violates gymnasium's API"


def _require(condition: bool, name: str, message: str) -> None:
    if not condition:
        raise BrokenEnvError(f"{_beginning(name)}: {message}")


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Restore the global random number generators at the end, because an env may draw from them."""
    torch: Any = sys.modules.get("torch")  # not imported in env processes
    python, of_numpy = random.getstate(), np.random.get_state()
    of_torch = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
        if of_torch is not None:
            torch.set_rng_state(of_torch)


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
